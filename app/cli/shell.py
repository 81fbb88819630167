"""What the shell completes: names of models. Whatever goes wrong on the way, it completes nothing, and says nothing."""

from collections.abc import Callable

import click
from click.shell_completion import CompletionItem

from app.catalogue import store
from app.catalogue.library import Library
from app.errors import StartError

Complete = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]


def names(*, here: bool, or_file: bool = False) -> Complete:
    """Of models that are here, or of those that can be had; or_file: paths are right too."""

    def complete(_: click.Context, __: click.Parameter, incomplete: str) -> list[CompletionItem]:
        paths = [CompletionItem(incomplete, type="file")] if or_file else []
        try:
            models = Library(store.folder()).models()
        except StartError:
            return paths
        found = [model.name for model in models if model.here == here and model.name.startswith(incomplete)]
        return [CompletionItem(name) for name in found] or paths

    return complete

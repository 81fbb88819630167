"""`segue models`: what there is to serve, and how it gets here."""

import sys

import click
from rich.filesize import decimal

from app.catalogue import fetch, filenames, store
from app.catalogue.library import Library
from app.cli import shell, tables
from app.cli.console import console
from app.cli.download import ended_by_signals, shown
from app.cli.ends import one_line_errors
from app.errors import SettingsError
from app.names import catalogue_entry, file_of


@click.group()
def models() -> None:
    """Get, list, describe and remove models. They lie in models/, or in $SEGUE_MODELS."""


def _library() -> Library:
    return Library(store.folder())


@models.command("list")
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
def list_models(as_json: bool) -> None:
    """The models of the catalogue, and those in the folder."""
    with one_line_errors():
        library = _library()
        if as_json:
            tables.print_json([tables.row(library, model) for model in library.models()])
        else:
            tables.print_table(tables.listed(library.models()))


@models.command()
@click.argument("name", metavar="NAME", shell_complete=shell.names(here=False))
@click.option("--as", "called", metavar="NAME", help="What the file is to be called, where NAME is a source.")
@click.option("--verify", is_flag=True, help="Read a file that is there again, and compare its checksum.")
def get(name: str, called: str | None, verify: bool) -> None:
    """Download a model, unless it is there, and print its path.

    NAME is a name of the catalogue, or a source: hf:OWNER/REPO:QUANTISATION, https://..., pypi:PACKAGE==VERSION, or a
    path. A download that breaks off goes on from there the next time. By downloading a model you accept its licence.
    """
    with one_line_errors(), ended_by_signals():
        library = _library()
        model = fetch.wanted(name, library.entries)
        stem = called and called.removesuffix(".gguf")
        if called is not None and (model.entry or not filenames.is_name(f"{stem}.gguf")):
            raise SettingsError(f"--as {called}: it names the file of a source, and holds no folder.")
        with shown(model) as progress:
            path = fetch.get(model, library.store, progress, stem, verifies=verify)
        click.echo(path)


@models.command()
@click.argument("names", metavar="NAME...", nargs=-1, required=True, shell_complete=shell.names(here=True))
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
def rm(names: tuple[str, ...], yes: bool) -> None:
    """Remove models from the folder."""
    with one_line_errors():
        library = _library()
        for file in dict.fromkeys(_file_here(library, name) for name in names):
            path = library.store.root / file
            if not yes and not (sys.stdin and sys.stdin.isatty()):
                raise SettingsError(f"{path} stays: nobody is there to be asked; --yes removes it.")
            if yes or click.confirm(f"Remove {path} ({decimal(library.store.size(file))})?", err=True):
                freed = decimal(library.store.remove(file))
                console.print(f"removed {path} ({freed})", highlight=False, markup=False, soft_wrap=True)


def _file_here(library: Library, name: str) -> str:
    """The file of a model that is there, or the name of one that broke off. Raises SettingsError."""
    file = library.file(name) or f"{name.removesuffix('.gguf')}.gguf"
    if not filenames.is_name(file) or not (library.store.size(file) or library.store.partials(file)):
        raise SettingsError(f"{name}: there is no such model in {library.store.root}; `segue models list` shows them.")
    return file


@models.command()
@click.argument("name", metavar="NAME_OR_PATH", shell_complete=shell.names(here=True, or_file=True))
@click.option("-c", "--ctx-size", metavar="N", type=click.IntRange(1, 2**31 - 1), help="Tokens to reckon memory for.")
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
def show(name: str, ctx_size: int | None, as_json: bool) -> None:
    """What a model's file says of itself, and the memory that it takes."""
    with one_line_errors():
        from app.catalogue.description import describe  # gguf takes a quarter of a second

        path = file_of(name)
        entry = catalogue_entry(path)
        model = describe(path, ctx_size or (entry.context if entry else None))
        if as_json:
            tables.print_json(model)
        else:
            tables.print_table(tables.described(model, entry))

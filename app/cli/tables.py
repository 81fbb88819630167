"""Models as people and scripts read them: tables, and JSON."""

import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import click
import msgspec
from rich.console import Console
from rich.filesize import decimal
from rich.table import Table

from app.catalogue.entries import Entry
from app.catalogue.library import Library, Listed
from app.cli.console import printable, tidy

if TYPE_CHECKING:  # what it imports takes a quarter of a second
    from app.catalogue.description import Description
    from app.catalogue.memory import Memory

UNWRAPPED = 1000
"""Columns where no terminal is: a line stays a line for whoever searches it."""


def print_table(table: Table) -> None:
    """On standard output, wrapped only for a terminal."""
    width = None if sys.stdout and sys.stdout.isatty() else UNWRAPPED
    tidy(Console(width=width, highlight=False, markup=False, emoji=False), table)


def print_json(value: object) -> None:
    """On standard output, indented."""
    click.echo(msgspec.json.format(msgspec.json.encode(value)))


def listed(models: Sequence[Listed]) -> Table:
    """Models, a line each."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for heading in ("name", "size", "here", "licence", "about"):
        table.add_column(heading, justify="right" if heading == "size" else "left", no_wrap=heading in ("name", "size"))
    for model in models:
        entry, size = model.entry, "?" if model.size is None else decimal(model.size)
        licence, about = (entry.licence, entry.about) if entry else ("", model.file)
        here = "yes" if model.here else "no"
        table.add_row(*map(printable, (model.name, size, here, licence, about)))
    return table


def row(library: Library, model: Listed) -> dict[str, Any]:
    """A model of the list, for a script: what the catalogue knows, null where it knows nothing."""
    known = msgspec.to_builtins(model.entry) if model.entry else dict.fromkeys(Entry.__struct_fields__)
    path = str(library.store.root / model.file) if model.here else None
    return {"name": model.name, "here": model.here, "path": path} | known | {"file": model.file, "size": model.size}


def described(model: "Description", entry: Entry | None) -> Table:
    """A description, a line a fact."""
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True, style="bold")
    table.add_column(overflow="fold")
    for name, fact in _facts(model, entry):
        table.add_row(name, "\n".join(map(printable, fact.split("\n"))))
    return table


def _facts(model: "Description", entry: Entry | None) -> Iterator[tuple[str, str]]:
    yield "file", model.path
    yield "size", decimal(model.size) + (f", {model.files} files" if model.files > 1 else "")
    if model.name:
        yield "name", model.name
    yield "architecture", model.architecture
    yield "parameters", f"{model.parameters:,}"
    yield "quantisation", model.quantisation
    yield "context", f"{model.context} tokens trained on"
    yield "vocabulary", f"{model.vocabulary} tokens ({model.tokenizer})"
    yield "BOS", {True: "read before a text", False: "not read", None: "as the tokenizer has it"}[model.adds_bos]
    tokens = (f"{token.id} {printable(token.text)} ({token.role})" for token in model.special_tokens)
    yield "special tokens", "\n".join(tokens)
    yield "chat template", "yes" if model.chat_template else "no"
    yield "insertion", _insertion(model, entry)
    if licence := (entry and entry.licence) or model.licence:
        yield "licence", licence
    yield from _memory(model.memory)


def _insertion(model: "Description", entry: Entry | None) -> str:
    if entry and entry.fim_template:
        return "yes, by the catalogue's template"
    return "yes, by its own tokens" if model.can_insert else "by search alone: --insertion search"


def _memory(memory: "Memory") -> Iterator[tuple[str, str]]:
    yield "weights", decimal(memory.weights)
    if memory.cache is None:
        yield "cache", f"not known: {memory.note}"
        return
    yield "cache", f"{decimal(memory.cache)}: {memory.cells} cells, at --ctx-size {memory.context}"
    yield "memory", f"{decimal(memory.weights + memory.cache)}, and what is computed in"

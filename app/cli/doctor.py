"""`segue doctor`."""

import os
import sys
from collections.abc import Iterator
from typing import Any

import click
import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text

from app.cli import checks, flags
from app.cli.console import output, printable, quiet, tidy
from app.cli.ends import one_line_errors
from app.cli.findings import Finding, refusal
from app.errors import SettingsError

STYLES = {"ok": "green", "warn": "bold yellow", "fail": "bold red"}


@click.command()
@click.option("--json", "as_object", is_flag=True, help="One JSON object.")
@flags.options(flags.MODEL, flags.ADDRESS, flags.CONFIG)
def doctor(as_object: bool, **given: Any) -> None:
    """Look at settings, llama.cpp, processor, GPUs, model, memory and port; a remedy for whatever is not well.

    Ends with 0 where a server would start, maybe with warnings, else with 1.
    """
    quiet()
    findings, screen = list[Finding](), output()
    with one_line_errors():
        for finding in map(safe, examined(given)):
            findings.append(finding)
            if not as_object:
                show(finding, screen)
    is_well = all(finding.verdict != "fail" for finding in findings)
    if as_object:
        click.echo(msgspec.json.encode({"ok": is_well, "checks": findings}))
    sys.exit(0 if is_well else 1)


def examined(given: dict[str, Any]) -> Iterator[Finding]:
    """What each check finds, as it is found. Where the settings are wrong, only what does not depend on them."""
    settings = None
    try:
        settings = flags.read(given)
    except SettingsError as error:
        yield refusal("settings", error)
    yield from checks.variables(os.environ)
    yield from checks.python()
    if settings:
        yield checks.port(settings)
    try:
        from app.cli import llama_checks
    except (ImportError, OSError, RuntimeError) as error:
        remedy = "scripts/install builds it for this machine; a GPU's build needs that GPU's driver"
        yield Finding("llama.cpp", "fail", f"does not load: {error}", remedy)
        return
    yield from llama_checks.of_machine()
    if settings:
        yield from llama_checks.of_settings(settings)


def safe(finding: Finding) -> Finding:
    """A finding without what no terminal should get, and no JSON can hold: names of files may have anything."""
    remedy = finding.remedy and printable(finding.remedy)
    return msgspec.structs.replace(finding, found=printable(finding.found), remedy=remedy)


def show(finding: Finding, screen: Console) -> None:
    """A finding, its remedy in a line of its own."""
    line = Table.grid(padding=(0, 2))
    for width in (4, 11, None):
        line.add_column(width=width, overflow="fold")
    told = Text(finding.found)
    if finding.remedy:
        told.append(f"\n-> {finding.remedy}", "bold")
    line.add_row(Text(finding.verdict, STYLES[finding.verdict]), finding.name, told)
    tidy(screen, line)

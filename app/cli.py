"""The command line: `segue serve`."""

import logging
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn
from rich.table import Table

from app import __version__, log
from app.api import server
from app.api.drain import Drain
from app.asgi import Loaded, create_app, create_engine, load
from app.engine import probe
from app.errors import SettingsError, StartError
from app.settings import LISTS, Settings
from app.settings import load as load_settings

console = Console(stderr=True)
logger = logging.getLogger("segue.cli")


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="segue")
def main() -> None:
    """segue continues text: any GGUF model behind OpenAI's POST /v1/completions."""


def _settings(function: Callable[..., None]) -> Callable[..., None]:
    """The flags of Settings. What is not given stays out, so that the environment and the file have their say."""
    options = [
        click.option("-m", "--model", metavar="PATH", help="GGUF file to serve."),
        click.option("-a", "--alias", metavar="NAME", multiple=True, help="One more name for it (repeatable)."),
        click.option("--host", metavar="ADDRESS", help="Address to listen on [127.0.0.1]."),
        click.option("--port", metavar="N", type=int, help="Port to listen on [8000]; 0: any free one."),
        click.option(
            "-c", "--ctx-size", metavar="N", type=int,
            help="Most tokens of one request, prompt and completion [the model's context, at most 8192].",
        ),
        click.option(
            "--cache-size", metavar="N", type=int,
            help="Tokens that all sequences share room for [2 x ctx-size, at least 8192].",
        ),
        click.option("-np", "--parallel", metavar="N", type=int, help="Most sequences that run at once [16]."),
        click.option("-t", "--threads", metavar="N", type=int, help="Threads that compute [all processors]."),
        click.option("-b", "--batch-size", metavar="N", type=int, help="Most tokens of one decode [512]."),
        click.option("-ngl", "--gpu-layers", metavar="N", type=int, help="Layers to offload [all that can be]."),
        click.option(
            "--repack/--no-repack", default=None,
            help="Lay weights out for this processor (AMX, wide vectors) [on]; off where that crashes or wants memory.",
        ),
        click.option("--max-logprobs", metavar="N", type=int, help="Ceiling of `logprobs` [20; 5 with --strict]."),
        click.option("--max-stop", metavar="N", type=int, help="Most stop strings [64; 4 with --strict]."),
        click.option("--max-waiting", metavar="N", type=int, help="Requests that may wait in line [256]."),
        click.option("--drain-seconds", metavar="N", type=int, help="Time that running requests have at the end [30]."),
        click.option(
            "--step-timeout", metavar="SECONDS", type=float,
            help="A step that takes longer means that the engine hangs: /health turns 503 [300].",
        ),
        click.option(
            "--request-timeout", metavar="SECONDS", type=float, help="Longest that a request may take [no limit]."
        ),
        click.option(
            "--prefix-cache/--no-prefix-cache", default=None,
            help="Keep what was read for later requests that begin alike [on]; off, a long prompt repeats exactly.",
        ),
        click.option(
            "--draft", metavar="WAY", help="off; prompt: guess tokens from the text before, verify many at once [off]."
        ),
        click.option("--strict", is_flag=True, default=None, help="Refuse whatever OpenAI's API would refuse."),
        click.option(
            "--api-key", metavar="KEY", multiple=True, help="Key that clients must send (repeatable) [none needed]."
        ),
        click.option("--api-key-file", metavar="FILE", help="File with such keys, one a line."),
        click.option(
            "--cors-origin", metavar="ORIGIN", multiple=True,
            help="Web origin whose pages may call, beside this machine's; * and null only if named (repeatable).",
        ),
        click.option(
            "--fim-order", metavar="ORDER", help="Order in which a gap is read: psm (prefix first) or spm [psm]."
        ),
        click.option(
            "--fim-template", metavar="TEXT",
            help="What a gap is read as: {prefix} and {suffix} among special tokens [the model's own].",
        ),
        click.option(
            "--insertion", metavar="WAY",
            help="frame: by the model's own tokens; search: also by search, where it has none [frame].",
        ),
        click.option("--log-json", is_flag=True, default=None, help="Log JSON objects, one a line."),
        click.option("--log-prompts", is_flag=True, default=None, help="Log prompts and completions too."),
        click.option("--config", metavar="FILE", help="TOML file with any of these settings."),
    ]  # fmt: skip
    for option in reversed(options):
        function = option(function)
    return function


@main.command()
@_settings
def serve(**flags: Any) -> None:
    """Serve a model. Every option can also be set as SEGUE_NAME in the environment, or in a --config file."""
    logging.getLogger("segue.llama").setLevel(logging.WARNING)
    try:
        settings = load_settings({key: value or None if key in LISTS else value for key, value in flags.items()})
        log.set_up(as_json=settings.log_json)
        with server.bind(settings.host, settings.port) as listener:
            if settings.log_json:
                loaded = load(settings)
            else:
                with _progress() as report:
                    loaded = load(settings, report)
            _run(settings, loaded, listener)
    except StartError as error:
        console.print(f"segue: {error.message}", style="bold red", markup=False, highlight=False, soft_wrap=True)
        sys.exit(2 if isinstance(error, SettingsError) else 1)


def _run(settings: Settings, loaded: Loaded, listener: socket.socket) -> None:
    (_log_start if settings.log_json else _banner)(settings, loaded, listener)
    engine, drain = create_engine(settings, loaded), Drain()
    end = server.End(drain.begin, engine.close, settings.drain_seconds)
    server.run(create_app(settings, loaded, engine, drain), listener, end)


@main.command("probe", hidden=True)
@click.argument("trial")
def try_out(trial: str) -> None:
    """Decode a few tokens, and die of it if need be: a server's own child, where it is frozen into one file."""
    sys.exit(probe.main(trial))


@contextmanager
def _progress() -> Iterator[Callable[[float], None]]:
    """A bar while the model loads."""
    columns = (TextColumn("loading the model"), BarColumn(), TaskProgressColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("", total=1.0)
        yield lambda done: progress.update(task, completed=done)


def _warnings(settings: Settings, loaded: Loaded, listener: socket.socket) -> Iterator[str]:
    """What does not keep it from serving; said last, where it is seen."""
    if settings.gpu_layers and loaded.device == "CPU":
        yield f"--gpu-layers {settings.gpu_layers} has no effect: llama-cpp-python was built without a GPU."
    if loaded.backend.limits.n_context > loaded.meta.n_ctx_train:
        yield f"the model was trained on {loaded.meta.n_ctx_train} tokens; beyond them, text goes astray."
    if not settings.api_key and not server.is_local(listener):
        yield "anyone who reaches this machine can use this server: set --api-key, or --host 127.0.0.1."


def _log_start(settings: Settings, loaded: Loaded, listener: socket.socket) -> None:
    """What the banner says, as lines of the log: where every line is an object, this one is too."""
    for warning in _warnings(settings, loaded, listener):
        logger.warning("%s", warning)
    address = f"{server.url(listener)}/v1"
    logger.info("serving", extra=log.fields(version=__version__, model=loaded.names[0], address=address))


def _banner(settings: Settings, loaded: Loaded, listener: socket.socket) -> None:
    limits, meta, url = loaded.backend.limits, loaded.meta, server.url(listener)
    table = Table.grid(padding=(0, 2))
    table.add_row("model", f"{', '.join(loaded.names)} ({meta.architecture}, {meta.quantization})")
    table.add_row("context", f"{limits.n_context} tokens a request, {limits.n_cells} in the cache")
    table.add_row("parallel", f"{settings.parallel} sequences, {settings.max_waiting} requests may wait")
    table.add_row("device", f"{loaded.device}, {loaded.n_threads} threads")
    table.add_row("address", f"{url}/v1 (documentation: {url}/docs)")
    console.print(f"[bold]segue {__version__}[/bold]")
    console.print(table, highlight=False, markup=False)
    body = f'{{"model": "{loaded.names[0]}", "prompt": "The capital of France is", "max_tokens": 5}}'
    console.print(
        f"\ncurl {url}/v1/completions -H 'content-type: application/json' \\\n  -d '{body}'\n",
        highlight=False, markup=False, soft_wrap=True,
    )  # fmt: skip
    for text in _warnings(settings, loaded, listener):
        console.print(f"WARNING: {text}", style="bold white on red", highlight=False, markup=False, soft_wrap=True)

"""The flags of the settings, in groups: a command takes those that mean something to it."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import click

from app.cli import shell
from app.settings import Settings, load

Command = Callable[..., None]
Group = tuple[Callable[[Command], Command], ...]

NAMES = frozenset({*Settings.__struct_fields__, "config"})
"""All that `read` reads; what else a command is given is its own."""

MODEL: Group = (
    click.option(
        "-m", "--model", metavar="NAME", shell_complete=shell.names(here=True, or_file=True),
        help="The model: a GGUF file, the folder of the only one, or a name of `segue models list`.",
    ),
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
    click.option(
        "-ngl", "--gpu-layers", metavar="N",
        help="Layers on the GPU: a number, all, or auto, as many as fit [auto].",
    ),
    click.option("--main-gpu", metavar="N", type=int, help="The one GPU to use, counted from 0 [all of them]."),
    click.option(
        "--tensor-split", metavar="N,N", help="How the layers are split among the GPUs, 3,1 say [by free memory]."
    ),
    click.option("--flash-attn", metavar="WHEN", help="Flash attention: auto, on or off [auto]."),
    click.option("--cache-type-k", metavar="TYPE", help="What keys are kept as: f16, q8_0, ... [f16]."),
    click.option("--cache-type-v", metavar="TYPE", help="What values are kept as: f16, q8_0, ... [f16]."),
    click.option(
        "--kv-offload/--no-kv-offload", default=None, help="The cache lies where its layers lie [on]; else in RAM."
    ),
    click.option("--mmap/--no-mmap", default=None, help="Map the file rather than read it [as the devices like]."),
    click.option("--mlock", is_flag=True, default=None, help="Keep the weights from being swapped out."),
    click.option(
        "--repack/--no-repack", default=None,
        help="Lay weights out for this processor (AMX, wide vectors) [on]; off where that crashes or wants memory.",
    ),
    click.option(
        "--draft", metavar="WAY", help="off; prompt: guess tokens from the text before, verify many at once [off]."
    ),
)  # fmt: skip
"""Which model, and how it is loaded and run."""

ASKED: Group = (
    click.option("--max-logprobs", metavar="N", type=int, help="Ceiling of `logprobs` [20; 5 with --strict]."),
    click.option("--max-stop", metavar="N", type=int, help="Most stop strings [64; 4 with --strict]."),
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
)  # fmt: skip
"""What a request may ask of it."""

ADDRESS: Group = (
    click.option("--host", metavar="ADDRESS", help="Address to listen on [127.0.0.1]."),
    click.option("--port", metavar="N", type=int, help="Port to listen on [8000]; 0: any free one."),
)

SERVER: Group = (
    click.option("-a", "--alias", metavar="NAME", multiple=True, help="One more name for it (repeatable)."),
    click.option("--load", metavar="WHEN", help="When a model is loaded: start or first-use [start]."),
    click.option(
        "--idle-unload-minutes", metavar="N", type=float,
        help="Unload a model that nobody has asked for so long; the next request loads it [never].",
    ),
    click.option(
        "--memory-budget", metavar="SIZE",
        help="What all models together may take, 8G say [four fifths of the memory, and what GPUs have free].",
    ),
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
    click.option("--strict", is_flag=True, default=None, help="Refuse whatever OpenAI's API would refuse."),
    click.option(
        "--api-key", metavar="KEY", multiple=True, help="Key that clients must send (repeatable) [none needed]."
    ),
    click.option("--api-key-file", metavar="FILE", type=click.Path(), help="File with such keys, one a line."),
    click.option(
        "--cors-origin", metavar="ORIGIN", multiple=True,
        help="Web origin whose pages may call, beside this machine's; * and null only if named (repeatable).",
    ),
    click.option("--log-json", is_flag=True, default=None, help="Log JSON objects, one a line."),
    click.option("--log-prompts", is_flag=True, default=None, help="Log prompts and completions too."),
)  # fmt: skip
"""Those who come, and what is written of them."""

CONFIG: Group = (
    click.option(
        "--config",
        metavar="FILE",
        type=click.Path(),
        help="TOML file with any of these settings; several models have a table [[models]] each.",
    ),
)


def options(*groups: Group) -> Callable[[Command], Command]:
    """Give a command options, in this order. What is not given stays out: environment and file have their say."""

    def decorated(command: Command) -> Command:
        for option in reversed([option for group in groups for option in group]):
            command = option(command)
        return command

    return decorated


settings = options(MODEL, ADDRESS, ASKED, SERVER, CONFIG)
"""All of them."""


def given(values: Mapping[str, Any], names: Iterable[str] = NAMES) -> dict[str, Any]:
    """Of a command's options those of these names that were given."""
    return {name: value for name, value in values.items() if name in names and value not in (None, ())}


def read(values: Mapping[str, Any]) -> Settings:
    """The settings, the given flags before all other sources. Raises SettingsError."""
    return load(given(values))

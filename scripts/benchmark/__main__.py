"""Measures segue beside the engine's own limit and beside peers: tokens a second, waiting, scoring, the host's cost.

Starts segue on a free port. Each round measures each case's sides in turn: a bare loop over llama.cpp, segue, the
peers. Prints a table (medians; ratios are medians of the rounds' ratios) and one line of JSON last. A peer that is
named llama-server or llama_cpp (or begins so) is asked in its own dialect. Close other programs first: two cores are
soon taken.
"""

import argparse
import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from scripts.benchmark import load, report, servers, texts
from scripts.benchmark.bare import Failure
from scripts.benchmark.case import QUICK, Bench, Case, Sizes
from scripts.benchmark.cases import NAMES, cases

ROOT = Path(__file__).resolve().parents[2]
Figures = dict[str, list[float]]


def parse(words: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        "scripts/bench", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default=str(ROOT / "models" / "gemma-3-270m-q4_k_m.gguf"), metavar="PATH")
    parser.add_argument("--threads", type=count, metavar="N", help="of segue and the bare loop [all processors]")
    parser.add_argument("--peer", type=servers.peer, action="append", default=[], metavar="NAME=URL", dest="peers")
    parser.add_argument("--only", nargs="+", choices=NAMES, default=NAMES, metavar="NAME", help=", ".join(NAMES))
    parser.add_argument("--rounds", type=count, metavar="N", help="[5]")
    parser.add_argument("--widths", type=count, nargs="+", metavar="N", help="requests at once [1 8 16 32]")
    parser.add_argument("--tokens", type=count, metavar="N", help="of each completion [64]")
    parser.add_argument("--quick", action="store_true", help="one short round, to see that all works")
    args = parser.parse_args(words)
    names = ["segue", *(peer.name for peer in args.peers)]
    if len(set(names)) < len(names):
        parser.error("every peer needs a name of its own, other than segue")
    if not Path(args.model).is_file():
        parser.error(f"{args.model}: there is no such model; scripts/get_model gets one")
    return args


def count(text: str) -> int:
    """A number of 1 or more."""
    number = int(text)
    if number < 1:
        raise ValueError(text)
    return number


def sizes(args: argparse.Namespace) -> Sizes:
    """The usual sizes or the quick ones, and what the command line says."""
    given = {"rounds": args.rounds, "widths": args.widths and tuple(args.widths), "tokens": args.tokens}
    return replace(QUICK if args.quick else Sizes(), **{key: value for key, value in given.items() if value})


def gather(args: argparse.Namespace, stack: ExitStack) -> Bench:
    """Start what the cases need; all of it ends with the stack. Raises servers.Unusable."""
    model, threads = str(Path(args.model).resolve()), args.threads

    def start(model: str, threads: int | None, *flags: str) -> servers.Server:
        return stack.enter_context(servers.segue(model, threads, *flags))

    segue = start(model, threads, *servers.cache_flags(True))
    peers = tuple(servers.wait(peer) for peer in args.peers)
    bench = Bench(sizes(args), model, threads, segue, peers)
    for server in (segue, *peers):
        warm(server)
    if "questions" in args.only:
        bench = replace(bench, uncached=start(model, threads, *servers.cache_flags(False)))
    if "draft" in args.only:
        bench = replace(bench, drafting=start(model, threads, "--draft", "prompt"))
    if "host" in args.only:
        toy = make_toy(Path(stack.enter_context(tempfile.TemporaryDirectory())))
        bench = replace(bench, toy_model=toy, toy=start(toy, 1))
    return bench


def warm(server: servers.Server) -> None:
    """What a server does only once, it does now."""
    n = min(server.dialect.most, 32)
    bodies = [server.body(text, 4) for text in texts.texts(n, 64, "warm")]
    asyncio.run(load.ask_all(server, bodies, n))


def make_toy(folder: Path) -> str:
    """The path of a toy model."""
    command = [sys.executable, "-m", "tests.toys", str(folder)]
    subprocess.run(command, cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)}, check=True, capture_output=True)
    return str(folder / "toy-spm.gguf")


def measure(chosen: list[Case], rounds: int) -> list[Figures]:
    """Every side of every case, round by round. Where that is cut short, what was found until then."""
    figures: list[Figures] = [{who: [] for who in case.sides} for case in chosen]
    try:
        for round_ in range(rounds):
            for case, found in zip(chosen, figures, strict=True):
                print(f"round {round_ + 1} of {rounds}: {case.what}", file=sys.stderr, flush=True)
                for who, side in case.sides.items():
                    found[who].append(side(round_))
    except (KeyboardInterrupt, servers.Unusable, Failure, OSError) as error:
        print(f"bench: cut short: {error!r}", file=sys.stderr)
    return figures


def main() -> None:
    args = parse()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that servers end, and what was found is told
    try:
        with ExitStack() as stack:
            bench = gather(args, stack)
            chosen = list(cases(bench, args.only))
            figures = measure(chosen, bench.sizes.rounds)
    except servers.Unusable as error:
        sys.exit(f"bench: {error}")
    lines = [
        line
        for case, found in zip(chosen, figures, strict=True)
        for line in report.compare(case.what, case.unit, case.of, found, case.targets)
    ]
    print(report.table(lines))
    told = {"model": Path(args.model).name, "rounds": bench.sizes.rounds, "lines": [*map(report.as_json, lines)]}
    print(json.dumps(told))
    if any(len(found) < bench.sizes.rounds for each in figures for found in each.values()):
        sys.exit(1)


if __name__ == "__main__":
    main()

"""Wears segue out, and says whether it stood it.

load: 64 connections with requests of all kinds; a third hang up at a random moment, one in ten is wrong. line: more
requests at once than may wait. room: sixteen long completions in a cache for four, each to be as it is alone.
scoring (only if named): 1,000 questions of four options behind 600 shared words, and the most memory they take.

Starts segue on a free port for each phase. Exits with 1 where anything is missed.
"""

import argparse
import signal
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

from scripts.benchmark.__main__ import count, make_toy
from scripts.benchmark.servers import Unusable
from scripts.endurance import phases
from scripts.endurance.verdict import all_met

PHASES = {
    "load": (phases.load, phases.LOAD_FLAGS),
    "line": (phases.line, phases.LINE_FLAGS),
    "room": (phases.room, phases.ROOM_FLAGS),
    "scoring": (phases.scoring, phases.SCORING_FLAGS),
}
USUAL = ("load", "line", "room")


def parse(words: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        "scripts/soak", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=10.0, metavar="N", help="of the load [10]")
    parser.add_argument("--requests", type=count, metavar="N", help="in place of minutes; nothing is timed then")
    parser.add_argument("--only", nargs="+", choices=PHASES, default=USUAL, metavar="NAME", help=", ".join(PHASES))
    parser.add_argument("--model", metavar="PATH", help="a GGUF file [a toy]")
    parser.add_argument("--threads", type=count, metavar="N", help="of segue [all processors]")
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="of the requests [1]")
    return parser.parse_args(words)


def main() -> None:
    args = parse()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that the server ends too
    met = True
    with ExitStack() as stack:
        model = args.model or make_toy(Path(stack.enter_context(tempfile.TemporaryDirectory())))
        plan = phases.Plan(str(Path(model).resolve()), args.threads, 60 * args.minutes, args.requests, args.seed)
        for name in args.only:
            phase, flags = PHASES[name]
            try:
                checks = phases.run(plan, phase, *flags)
            except Unusable as error:
                sys.exit(f"soak: {error}")
            print(name, *checks, sep="\n", flush=True)
            met = met and all_met(checks)
    print("verdict: stood it" if met else "verdict: MISSED")
    sys.exit(not met)


if __name__ == "__main__":
    main()

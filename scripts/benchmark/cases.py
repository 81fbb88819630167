"""The cases by name, in the order in which they are measured."""

from collections.abc import Callable, Iterator, Sequence

from scripts.benchmark.case import Bench, Case
from scripts.benchmark.draft import draft
from scripts.benchmark.host import host
from scripts.benchmark.reading import prompt, questions, score
from scripts.benchmark.speed import WAYS, best_of, speed, waiting

OTHERS: dict[str, Callable[[Bench], Iterator[Case]]] = {
    "best_of": best_of,
    "prompt": prompt,
    "score": score,
    "questions": questions,
    "waiting": waiting,
    "draft": draft,
    "host": host,
}
NAMES = (*dict.fromkeys(way.name for way in WAYS), *OTHERS)


def cases(bench: Bench, names: Sequence[str]) -> Iterator[Case]:
    """The named cases. Those of one width stand together: they share the bare loop of a round."""
    for width in bench.sizes.widths:
        yield from (speed(bench, way, width) for way in WAYS if way.name in names)
    for name, make in OTHERS.items():
        if name in names:
            yield from make(bench)

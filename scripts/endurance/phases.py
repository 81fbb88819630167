"""The phases: what is done to a server, and what it is judged by.

Each starts a server of its own, and adds how that ended.
"""

import asyncio
import itertools
import math
import sys
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass, field
from typing import Any

from scripts.benchmark import texts
from scripts.benchmark.servers import Server, segue
from scripts.endurance import readings, weights
from scripts.endurance.readings import Reading
from scripts.endurance.verdict import MB, Check, at_least, at_most, growth, percentile
from scripts.endurance.visits import Outcome, Visit, said, visit
from scripts.endurance.wishes import Wish, completion, wishes

N_CONNECTIONS = 64
LOAD_FLAGS = ("--ctx-size", "2048", "--cache-size", "8192")
"""Smaller than what is asked at once, so that the cache turns over."""
GROWTH_MB = 50
TAIL = 5
"""How many times as long as at the median the first byte may take at the 99th percentile: prompts differ by as much."""
READING_SECONDS = 0.5


@dataclass(frozen=True)
class Plan:
    """What is run: against which model, how long or how many requests (then nothing is judged by the clock)."""

    model: str
    threads: int | None
    seconds: float
    n_requests: int | None
    seed: int


@dataclass
class Tally:
    """What has come of the requests so far. firsts: seconds to the first byte of good answers."""

    outcomes: Counter[Outcome] = field(default_factory=Counter)
    firsts: list[float] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def add(self, visit: Visit) -> None:
        self.outcomes[visit.outcome] += 1
        if visit.outcome is Outcome.DONE and visit.wish.n_choices:
            self.firsts.append(visit.seconds)
        if visit.problem:
            self.problems.append(visit.problem)
            print(f"soak: {visit.wish.body[:120]!r}: {visit.problem}", file=sys.stderr)


Phase = Callable[[Server, Plan], Coroutine[Any, Any, list[Check]]]


def run(plan: Plan, phase: Phase, *flags: str) -> list[Check]:
    """A phase, on a server with these flags, and how the server ended. Raises servers.Unusable."""
    with segue(plan.model, plan.threads, *flags) as server:
        checks = asyncio.run(phase(server, plan))
        assert server.process
        alive = server.process.poll() is None
    return [
        *checks,
        Check("alive at the end", "yes" if alive else "no", "yes", alive),
        Check("exit code on SIGTERM", str(server.process.returncode), "0", server.process.returncode == 0),
    ]


async def load(server: Server, plan: Plan) -> list[Check]:
    """Many connections with everything at once, of which some leave and some are wrong."""
    tally, memory = Tally(), list[int]()
    watching = asyncio.create_task(_watch(server, memory))
    asked = _until(wishes(await readings.model(server), plan.seed), plan)

    async def client() -> None:
        for wish in asked:
            tally.add(await visit(server, wish))

    start = time.perf_counter()
    await asyncio.gather(*(client() for _ in range(N_CONNECTIONS)))
    seconds = time.perf_counter() - start
    watching.cancel()
    return [*_told(tally, seconds), *_timed(tally, memory, plan), *_idle(await readings.idle(server))]


def _until(wishes: Iterator[Wish], plan: Plan) -> Iterator[Wish]:
    """The requests of a phase: so many, or those of so many seconds."""
    if plan.n_requests is not None:
        return itertools.islice(wishes, plan.n_requests)
    deadline = time.monotonic() + plan.seconds
    return itertools.takewhile(lambda _: time.monotonic() < deadline, wishes)


async def _watch(server: Server, memory: list[int]) -> None:
    while True:
        memory.append((await readings.read(server)).memory)
        await asyncio.sleep(READING_SECONDS)


def _told(tally: Tally, seconds: float) -> list[Check]:
    outcomes = tally.outcomes
    return [
        Check("requests", f"{outcomes.total()} in {seconds:.0f} s"),
        *(Check(f"  {outcome}", str(outcomes[outcome])) for outcome in Outcome if outcome is not Outcome.FAILED),
        at_most("failed", outcomes[Outcome.FAILED], 0),
        at_least("done", outcomes[Outcome.DONE], 1),
    ]


def _timed(tally: Tally, memory: list[int], plan: Plan) -> list[Check]:
    """What the clock says; judged only where it has run for long enough."""
    median, tail = (percentile(tally.firsts or [math.nan], share) for share in (0.5, 0.99))
    checks = [
        Check("first byte, median", f"{median:.3f} s"),
        at_most("first byte, 99th percentile", tail, TAIL * median, " s"),
        Check("memory at the end", f"{memory[-1] / MB:.0f} MB"),
        at_most("memory, rise in the second half", growth(memory), GROWTH_MB, " MB"),
    ]
    return checks if plan.n_requests is None else [check._replace(bound="", met=None) for check in checks]


def _idle(reading: Reading) -> list[Check]:
    return [
        at_most("sequences that still run", reading.running, 0),
        at_most("requests that still wait", reading.waiting, 0),
        at_most("cells that still run", reading.cells, 0),
        at_most("faults", reading.faults, 0),
    ]


N_RUNNING, N_WAITING, N_OVER = 2, 8, 32
LINE_FLAGS = ("--parallel", str(N_RUNNING), "--max-waiting", str(N_WAITING), "--ctx-size", "1024")


async def line(server: Server, plan: Plan) -> list[Check]:
    """More requests at once than may run and wait: the rest are told so at once, and who is in line is served."""
    prompts = texts.texts(N_OVER, 4, plan.seed, "line")
    bodies = ({"prompt": prompt, "max_tokens": 300, "ignore_eos": True} for prompt in prompts)
    visits = await asyncio.gather(*(visit(server, completion(body)) for body in bodies))
    tally = Tally()
    for each in visits:
        tally.add(each)
    told_off = [each.end for each in visits if each.outcome is Outcome.TOLD_OFF]
    served = [each.end for each in visits if each.outcome is Outcome.DONE]
    at_once = bool(told_off and served) and max(told_off) < min(served)
    return [
        at_least("answered 429 with Retry-After", len(told_off), N_OVER - 2 * N_RUNNING - N_WAITING),
        Check("before anyone was served", "yes" if at_once else "no", "yes", at_once),
        at_least("served", len(served), N_WAITING),
        at_most("failed", tally.outcomes[Outcome.FAILED], 0),
        *_idle(await readings.idle(server)),
    ]


N_LONG, N_FITTING, CONTEXT = 16, 4, 256
ROOM_FLAGS = ("--parallel", str(N_LONG), "--ctx-size", str(CONTEXT), "--cache-size", str(N_FITTING * CONTEXT))


async def room(server: Server, plan: Plan) -> list[Check]:
    """Long completions in a cache for a quarter of them: each as when it is alone."""
    prompts = [[1 + i, *range(100, 111)] for i in range(N_LONG)]
    wishes = [
        completion({"prompt": prompt, "max_tokens": CONTEXT - len(prompt), "seed": plan.seed + i, "ignore_eos": True})
        for i, prompt in enumerate(prompts)
    ]
    alone = [await visit(server, wish) for wish in wishes]
    before = (await readings.idle(server)).preemptions
    together = await asyncio.gather(*(visit(server, wish) for wish in wishes))
    reading = await readings.idle(server)
    n_done = sum(each.outcome is Outcome.DONE for each in (*alone, *together))
    n_alike = sum(
        Outcome.DONE is first.outcome is second.outcome and said(first) == said(second)
        for first, second in zip(alone, together, strict=True)
    )
    return [
        at_least("finished, alone and together", n_done, 2 * N_LONG),
        at_least("same answer as alone", n_alike, N_LONG),
        at_least("preemptions", reading.preemptions - before, 1),
        *_idle(reading),
    ]


N_QUESTIONS, N_SHARED, N_ASKING, N_CELLS, ALLOWED_MB = 1000, 600, 8, 16384, 600
SCORING_FLAGS = ("--cache-size", str(N_CELLS))


async def scoring(server: Server, plan: Plan) -> list[Check]:
    """Questions of an evaluation, a request each, and the most memory that they took."""
    n_questions = plan.n_requests or N_QUESTIONS
    quiz = texts.quiz(n_questions, N_SHARED, plan.seed)
    asked = iter(
        completion({
            "prompt": [quiz.examples + question + option for option in options],
            "echo": True, "logprobs": 1, "max_tokens": 1, "temperature": 0,
        })
        for question, options in quiz.questions
    )  # fmt: skip
    tally, start = Tally(), time.perf_counter()

    async def client() -> None:
        for wish in asked:
            tally.add(await visit(server, wish))

    await asyncio.gather(*(client() for _ in range(N_ASKING)))
    seconds = time.perf_counter() - start
    reading, bound = await readings.idle(server), weights.model(plan.model) + N_CELLS * weights.cell(plan.model)
    return [
        *_told(tally, seconds),
        Check("model and cache", f"{bound / MB:.0f} MB"),
        at_most("peak of memory", readings.peak(server) / MB, bound / MB + ALLOWED_MB, " MB"),
        *_idle(reading),
    ]

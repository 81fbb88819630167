"""The yardstick: what it makes of figures, what it says to whom, and that it measures to the end."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from scripts.benchmark import bare, texts
from scripts.benchmark.__main__ import parse, sizes
from scripts.benchmark.case import Case, Sizes
from scripts.benchmark.load import counts
from scripts.benchmark.report import Comparison, Target, as_json, compare, ratio, shown, table
from scripts.benchmark.servers import Server, peer

ROOT = Path(__file__).parents[2]
HERE = str(Path(__file__))
"""Some file that is there, for a model's."""


def lines(**figures: list[float]) -> list[Comparison]:
    targets: dict[str | None, Target] = {"limit": Target(at_least=0.9), "other": Target(at_most=2)}
    return list(compare("case", "tokens/s", "segue", figures, targets))


# Figures


def test_a_ratio_is_the_median_of_the_rounds_ratios() -> None:
    # The second round was slow for both: the medians' ratio would be 50 / 100.
    assert ratio([100, 40, 50], [100, 50, 200]) == 0.8


def test_a_round_that_one_side_did_not_end_does_not_count() -> None:
    assert ratio([10, 99], [5]) == 2


def test_every_other_side_is_compared_and_judged_by_its_target() -> None:
    limit, other, third = lines(segue=[9, 10, 11], limit=[10, 10, 10], other=[4, 4, 4], third=[1, 1, 1])
    assert (limit.value, limit.other, limit.ratio, limit.met) == (10, 10, 1.0, True)
    assert (other.ratio, other.met) == (2.5, False)
    assert (third.ratio, third.met) == (10, None)


def test_a_target_may_bound_the_value_itself() -> None:
    first, second = compare("cost", "us", "host", {"host": [60], "bare": [20]}, {None: Target(at_most=50)})
    assert (first.value, first.against, first.met) == (60, None, False)
    assert (second.against, second.ratio, second.met) == ("bare", 3, None)


def test_a_side_alone_is_told_and_one_that_was_not_measured_is_not() -> None:
    (alone,) = lines(segue=[3], limit=[])
    assert (alone.value, alone.against) == (3, None)
    assert lines(segue=[], limit=[1]) == []


@pytest.mark.parametrize(
    ("target", "ratio", "met"),
    [(Target(at_least=0.9), 0.9, True), (Target(at_least=0.9), 0.89, False), (Target(at_most=0.05), 0.06, False)],
)
def test_targets_include_their_bound(target: Target, ratio: float, met: bool) -> None:
    assert target.met(ratio) is met


@pytest.mark.parametrize(
    ("number", "text"), [(1234.5, "1234"), (99.96, "100.0"), (12.34, "12.3"), (0.04567, "0.0457"), (-3.14159, "-3.14")]
)
def test_numbers_are_shown_by_the_digits_that_count(number: float, text: str) -> None:
    assert shown(number) == text


def test_the_table_says_a_case_once_and_lines_its_columns_up() -> None:
    head, first, second = table(lines(segue=[350], limit=[400], other=[100])).splitlines()
    assert first.split() == ["case", "tokens/s", "350", "limit", "400", "0.875", ">=", "0.9", "MISSED"]
    assert second.split() == ["other", "100", "3.5", "<=", "2", "MISSED"]
    assert head.index("against") == first.index("limit") == second.index("other")


def test_lines_for_programs_keep_four_digits() -> None:
    (line,) = lines(segue=[100.0], limit=[300.0])
    assert as_json(line) == {
        "what": "case", "unit": "tokens/s", "against": "limit", "target": ">= 0.9",
        "value": 100.0, "other": 300.0, "ratio": 0.3333, "met": False,
    }  # fmt: skip


# The command line


def test_what_the_command_line_says_replaces_the_usual_sizes() -> None:
    usual = sizes(parse(["--model", HERE]))
    assert usual == Sizes()
    given = sizes(parse(["--model", HERE, "--quick", "--rounds", "2", "--widths", "3", "4"]))
    assert (given.rounds, given.widths) == (2, (3, 4))
    assert given.long_words < usual.long_words


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--rounds", "0"], "--rounds"),
        (["--only", "nothing"], "nothing"),
        (["--peer", "http://127.0.0.1:1"], "--peer"),
        (["--peer", "other=127.0.0.1:1"], "--peer"),
        (["--peer", "segue=http://127.0.0.1:1"], "name of its own"),
        (["--peer", "a=http://h:1", "--peer", "a=http://h:2"], "name of its own"),
        (["--model", "/nowhere.gguf"], "/nowhere.gguf"),
    ],
)
def test_a_wrong_argument_is_named(words: list[str], complaint: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        parse(["--model", HERE, *words])
    assert ended.value.code == 2
    assert complaint in capsys.readouterr().err


# Dialects and answers


def test_a_peer_speaks_the_dialect_that_its_name_begins_with() -> None:
    llama = peer("llama-server-old=http://127.0.0.1:8501/")
    assert (llama.host, llama.port) == ("127.0.0.1", 8501)
    assert llama.body("a", 1)["cache_prompt"] is False
    assert "cache_prompt" not in llama.body("a", 1, cached=True)
    assert "ignore_eos" not in Server("unknown", "127.0.0.1", 1).body("a", 1)


def test_sampling_is_said_in_full_to_everyone() -> None:
    for name in ("segue", "llama-server", "llama_cpp", "unknown"):
        body = Server(name, "127.0.0.1", 1).body("a", 1, temperature=0)
        assert {key: body[key] for key in ("temperature", "top_p", "top_k", "min_p")} == {
            "temperature": 0, "top_p": 1, "top_k": 0, "min_p": 0,
        }  # fmt: skip


EVENT = b'data: {"choices": [{"text": "a"}]}\n\n'
USAGE = b'data: {"usage":{"prompt_tokens": 5, "completion_tokens":7}}\n\n'


@pytest.mark.parametrize(
    ("data", "streamed", "found"),
    [
        (b'{"usage":{"prompt_tokens":3,"completion_tokens":4}}', False, (3, 4)),
        (EVENT * 2 + USAGE + b"data: [DONE]\n\n", True, (5, 7)),
        (EVENT * 3 + b"data: [DONE]\n\n", True, (0, 2)),
        (EVENT * 3, True, (0, 0)),
        (b'{"text": "cut off', False, (0, 0)),
    ],
)
def test_tokens_are_counted_by_usage_else_by_events(data: bytes, streamed: bool, found: tuple[int, int]) -> None:
    assert counts(data, streamed) == found


def test_options_of_a_question_share_all_but_themselves() -> None:
    quiz = texts.quiz(2, 10, "key")
    first, second, *_ = quiz.prompts()
    assert len(quiz.prompts()) == 8
    assert first != second
    assert first.startswith(quiz.examples + quiz.questions[0][0])
    assert second.startswith(quiz.examples + quiz.questions[0][0])
    assert texts.quiz(2, 10, "key") == quiz != texts.quiz(2, 10, "another")


def test_a_side_is_told_the_round() -> None:
    from scripts.benchmark.__main__ import measure

    case = Case("case", "s", "b", {"a": lambda round_: round_, "b": lambda round_: 10.0 + round_})
    assert measure([case], 2) == [{"a": [0, 1], "b": [10, 11]}]


def test_what_was_found_before_a_failure_stays(capsys: pytest.CaptureFixture[str]) -> None:
    from scripts.benchmark.__main__ import measure

    def failing(round_: int) -> float:
        raise bare.Failure("no such thing")

    assert measure([Case("case", "s", "a", {"a": float, "b": failing})], 2) == [{"a": [0], "b": []}]
    assert "no such thing" in capsys.readouterr().err


# All of it


def test_it_measures_a_toy_to_the_end(toy_folder: Path) -> None:
    """segue, the bare loop and the report, in a quick round of the cheapest cases."""
    command = [sys.executable, "-m", "scripts.benchmark", "--quick", "--widths", "2", "--threads", "1"]
    command += ["--model", str(toy_folder / "toy-spm.gguf"), "--only", "greedy", "prompt", "score", "waiting"]
    done = subprocess.run(
        command, cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    found = {(line["what"], line["against"]): line for line in told["lines"]}
    assert found["2 at once, greedy, streamed", "limit"]["ratio"] > 0
    assert {line["against"] for line in told["lines"]} == {"limit", "decode only", "first time", "one piece"}
    assert all(line["value"] > 0 for line in told["lines"])

"""`segue complete`: what it asks, what it prints, and how it ends; the right answers are the oracle's or the API's."""

import json
import signal
import subprocess
from pathlib import Path
from typing import Any

import click
import pytest

from app.cli import asking, flags
from app.errors import InvalidRequest
from app.schemas import CompletionRequest
from tests.cli.commands import printed, refused, run
from tests.conftest import KEYS, Served
from tests.servers import COMMAND, ROOT, environment, without_identity

PROMPT = "once upon a time"
GREEDY = ("--temperature", "0", "--max-tokens", "12")
DRAWN: dict[str, Any] = {"prompt": PROMPT, "seed": 7, "n": 3, "max_tokens": 9}
DRAW = ("--seed", "7", "-n", "3", "--max-tokens", "9")


def continued(served: Served, prompt: str, n: int = 12) -> str:
    """The greedy continuation, by the model's table."""
    return served.oracle.complete(served.oracle.greedy(served.oracle.read(prompt), n), n).text


def local(served: Served, folder: Path) -> tuple[str, ...]:
    """A model of its own."""
    return "complete", "--model", str(folder / f"{served.toy.name}.gguf"), "--threads", "1"


def at(served: Served) -> tuple[str, ...]:
    """The server that is running."""
    return "complete", "--url", served.server.url


def test_the_text_alone_is_printed_by_a_model_and_by_a_server(spm: Served, toy_folder: Path) -> None:
    wanted = continued(spm, PROMPT) + "\n"
    assert printed(*at(spm), PROMPT, *GREEDY) == wanted
    assert printed(*local(spm, toy_folder), PROMPT, *GREEDY) == wanted


@pytest.mark.parametrize("words", [(), ("-",)])
@pytest.mark.parametrize("end", ["", "\n", "\r\n"])
def test_standard_input_is_read_without_its_last_line_end(spm: Served, words: tuple[str, ...], end: str) -> None:
    assert printed(*at(spm), *words, *GREEDY, text=PROMPT + end) == continued(spm, PROMPT) + "\n"


def test_only_the_last_line_end_of_standard_input_is_left_out(spm: Served) -> None:
    assert continued(spm, "a\n") != continued(spm, "a")
    assert printed(*at(spm), *GREEDY, text="a\n\n") == continued(spm, "a\n") + "\n"


def test_standard_input_that_is_no_text_is_refused(spm: Served) -> None:
    assert "UTF-8" in refused(2, *at(spm), text=b"\xff\xfe")


def test_an_argument_that_is_no_text_is_refused(spm: Served) -> None:
    assert "UTF-8" in refused(2, *at(spm), "a\udcff")


@pytest.mark.parametrize("way", [(), ("--stream",)])
def test_several_choices_are_told_apart_and_keep_their_order(spm: Served, way: tuple[str, ...]) -> None:
    texts = [choice["text"] for choice in spm.api.choices(**DRAWN)]
    wanted = "".join(f"--- {i} of 3 ---\n{text}\n" for i, text in enumerate(texts, 1))
    assert printed(*at(spm), PROMPT, *DRAW, *way) == wanted


def test_a_local_stream_prints_the_same(spm: Served, toy_folder: Path) -> None:
    (text,) = [choice["text"] for choice in spm.api.choices(**DRAWN | {"n": 1, "echo": True, "max_tokens": 60})]
    flags = ("--seed", "7", "--echo", "--max-tokens", "60", "--stream")
    assert printed(*local(spm, toy_folder), PROMPT, *flags) == text + "\n"


def test_of_several_models_the_first_answers(spm: Served, toy_folder: Path, tmp_path: Path) -> None:
    config = tmp_path / "segue.toml"
    config.write_text("".join(f"[[models]]\nmodel = '{toy_folder / n}.gguf'\n" for n in ("toy-spm", "toy-bpe")))
    said = printed("complete", "--config", str(config), "--threads", "1", PROMPT, *GREEDY)
    assert said == continued(spm, PROMPT) + "\n"


def test_json_is_the_object_of_the_api(spm: Served) -> None:
    asked = DRAWN | {"logprobs": 2}
    answer = spm.api.complete(**asked)
    told = json.loads(printed(*at(spm), PROMPT, *DRAW, "--logprobs", "2", "--json"))
    # What was read before is in the cache now.
    for each in (answer, told):
        del each["usage"]["prompt_tokens_details"]
    assert without_identity([told]) == without_identity([answer])


def test_json_of_a_stream_is_a_chunk_a_line(spm: Served) -> None:
    chunks = spm.api.stream(**DRAWN | {"n": 1}).chunks
    lines = printed(*at(spm), PROMPT, "--seed", "7", "--max-tokens", "9", "--json", "--stream").splitlines()
    assert without_identity([json.loads(line) for line in lines]) == without_identity(chunks)


FIELDS: dict[str, tuple[tuple[str, ...], Any]] = {
    "suffix": (("--suffix", "x"), "x"),
    "max_tokens": (("--max-tokens", "0"), 0),
    "n": (("-n", "2"), 2),
    "best_of": (("--best-of", "3"), 3),
    "stream": (("--stream",), True),
    "echo": (("--echo",), True),
    "logprobs": (("--logprobs", "0"), 0),
    "temperature": (("--temperature", "0"), 0.0),
    "top_p": (("--top-p", "0.5"), 0.5),
    "top_k": (("--top-k", "0"), 0),
    "min_p": (("--min-p", "0.1"), 0.1),
    "seed": (("--seed", "-1"), -1),
    "stop": (("--stop", "a", "--stop", "b,c"), ["a", "b,c"]),
    "frequency_penalty": (("--frequency-penalty", "-2"), -2.0),
    "presence_penalty": (("--presence-penalty", "2"), 2.0),
    "repetition_penalty": (("--repetition-penalty", "1.5"), 1.5),
    "logit_bias": (("--logit-bias", "5=-100", "--logit-bias", "7=0.5"), {"5": -100.0, "7": 0.5}),
    "min_tokens": (("--min-tokens", "3"), 3),
    "ignore_eos": (("--ignore-eos",), True),
}


def asked(*words: str) -> CompletionRequest:
    """The request that flags make."""
    seen: dict[str, Any] = {}
    command = flags.options(asking.FIELDS)(lambda **values: seen.update(values))
    click.command()(command).main(words, standalone_mode=False)
    return asking.request(PROMPT, seen)


@pytest.mark.parametrize("field", FIELDS)
def test_each_flag_is_a_field_of_the_request(field: str) -> None:
    words, value = FIELDS[field]
    assert asked(*words) == CompletionRequest(prompt=PROMPT, **{field: value})


def test_nothing_is_asked_that_was_not_given() -> None:
    assert asked() == CompletionRequest(prompt=PROMPT)


@pytest.mark.parametrize("word", ["5", "5=", "5=x"])
def test_a_bias_without_a_number_is_refused(word: str) -> None:
    with pytest.raises(InvalidRequest, match="ID=NUMBER"):
        asked("--logit-bias", word)


def test_what_the_api_refuses_is_refused_in_one_line(spm: Served, toy_folder: Path) -> None:
    for source in (at(spm), local(spm, toy_folder)):
        assert "logprobs is 99" in refused(2, *source, "a", "--logprobs", "99")
    # Before a model is loaded, or a server asked.
    assert "temperature" in refused(2, "complete", "a", "--temperature", "9", "--url", "http://127.0.0.1:1")
    assert "9999" in refused(2, *at(spm), "a", "--max-tokens", "9999")
    assert "nonsense" in refused(2, *at(spm), "a", "--model", "nonsense")


def test_a_model_is_asked_for_by_the_name_it_is_served_under(spm: Served) -> None:
    told = printed(*at(spm), "a", "--model", "other/name", "--json", "--max-tokens", "1")
    assert json.loads(told)["model"] == "other/name"


def test_a_strict_server_is_told_the_model(strict: Served) -> None:
    assert printed(*at(strict), PROMPT, *GREEDY) == continued(strict, PROMPT) + "\n"


def test_a_key_is_sent_and_a_wrong_one_said_to_be(guarded: Served) -> None:
    assert "API key" in refused(2, *at(guarded), "a", "--api-key", "wrong")
    assert "API key" in refused(2, *at(guarded), "a", "--model", "toy-bpe")
    wanted = continued(guarded, PROMPT) + "\n"
    assert printed(*at(guarded), PROMPT, *GREEDY, "--api-key", KEYS[0]) == wanted


def test_a_server_that_is_not_there_is_named(taken_port: int) -> None:
    url = f"http://127.0.0.1:{taken_port}/v1"
    line = refused(1, "complete", "a", "--url", url)
    assert url in line
    assert "reached" in line
    assert "nonsense" in refused(2, "complete", "a", "--url", "nonsense")


def test_what_makes_no_sense_together_is_refused(spm: Served, toy_folder: Path) -> None:
    assert "--threads" in refused(2, *at(spm), "a", "--threads", "2")
    assert "--url" in refused(2, *local(spm, toy_folder), "a", "--api-key", "k")
    done = run(*at(spm), "a", "--stream", "--probabilities")
    assert done.exit_code == 2
    assert "--stream" in done.stderr


def test_a_model_that_is_not_there_is_named(tmp_path: Path) -> None:
    missing = tmp_path / "nope.gguf"
    assert str(missing) in refused(1, "complete", "a", "--model", str(missing))
    assert "--model" in refused(2, "complete", "a")


def endless(served: Served, folder: Path) -> subprocess.Popen[bytes]:
    """A stream of many choices, so that it takes a while, of which something has been printed."""
    words = [*COMMAND, *local(served, folder), PROMPT, "--stream", "--ignore-eos", "--max-tokens", "8000", "-n", "20"]
    process = subprocess.Popen(
        words, cwd=ROOT, env=environment(), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout
    assert process.stdout.readline() == b"--- 1 of 20 ---\n"
    assert process.stdout.read(1)
    return process


def test_an_interrupt_ends_it_without_a_word(spm: Served, toy_folder: Path) -> None:
    with endless(spm, toy_folder) as process:
        process.send_signal(signal.SIGINT)
        assert process.stderr
        assert process.stderr.read() == b""
        assert process.wait(60) == 130


def test_a_reader_that_leaves_ends_it_without_a_word(spm: Served, toy_folder: Path) -> None:
    with endless(spm, toy_folder) as process:
        assert process.stdout
        assert process.stderr
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(60) == 1


@pytest.mark.parametrize("flag", ["temperature", "top-p", "min-p", "frequency-penalty", "repetition-penalty"])
@pytest.mark.parametrize("value", ["nan", "inf", "-inf"])
def test_what_json_has_no_number_for_is_refused(flag: str, value: str) -> None:
    said = refused(2, "complete", "a", "--url", "http://127.0.0.1:9", f"--{flag}", value)
    assert said == f"segue: {flag.replace('-', '_')}: {float(value)} is no number."


@pytest.mark.parametrize("bias", ["5=nan", "5=inf", "=5", "5", "5=", "="])
def test_a_bias_that_is_none_is_refused(bias: str) -> None:
    assert f"{bias!r} is not ID=NUMBER" in refused(2, "complete", "a", "--logit-bias", bias)

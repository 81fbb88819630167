"""`segue complete --probabilities`: the numbers are the toy's table, and everybody can read them."""

import math
import re
from itertools import pairwise

import pytest
from rich.cells import cell_len

from app.cli import probabilities
from app.schemas import Choice, Logprobs
from tests.cli.commands import printed
from tests.conftest import Served
from tests.oracle import Entry

PROMPT = "once upon a time é"
ANSI = re.compile(r"\x1b\[([\d;]*)m([^\x1b]*)")
COLOURS = {"FORCE_COLOR": "1", "COLORTERM": "truecolor", "TERM": "xterm-256color", "NO_COLOR": ""}


def entries(served: Served, prompt: str, n: int, n_top: int) -> list[Entry]:
    """The tokens of a greedy answer that echoes its prompt, by the model's table."""
    oracle = served.oracle
    read = oracle.read(prompt)
    return oracle.entries(read, oracle.complete(oracle.greedy(read, n), n), n_top, echo=True)


def shown(served: Served, prompt: str, *flags: str, env: dict[str, str] | None = None) -> str:
    asked = ("--probabilities", "--echo", "--temperature", "0", "--max-tokens", "9", *flags)
    return printed("complete", "--url", served.server.url, prompt, *asked, env=env)


def test_the_numbers_are_the_models(spm: Served) -> None:
    wanted = entries(spm, PROMPT, 9, probabilities.N_LIKELIEST)
    lines = shown(spm, PROMPT).splitlines()
    rows = [line.rstrip() for line in lines[lines.index(next(x for x in lines if x.startswith("token "))) + 1 :]]
    assert len(rows) == len(wanted) + 1
    for row, entry in zip(rows, wanted, strict=False):
        assert f"{row} ".startswith(f"{entry.token!r} ")
        told = [float(number) for number in re.findall(r" ([\d.e-]+)%", row.removeprefix(repr(entry.token)))]
        others = [p for token, p in (entry.top or {}).items() if token != entry.token]
        logprobs = [entry.logprob, *others] if entry.logprob is not None else []
        assert told == [pytest.approx(100 * math.exp(p), abs=0.05 + 1e-3) for p in logprobs]
        for token in entry.top or {}:
            assert (token if token.startswith("bytes:") else repr(token)) in row


def test_it_fits_eighty_columns_with_a_line_a_token(spm: Served) -> None:
    lines = shown(spm, PROMPT).splitlines()
    assert max(map(cell_len, lines)) <= 80
    assert sum("%" in line for line in lines) == len(entries(spm, PROMPT, 9, 1)) - 1


def test_without_a_terminal_or_with_no_color_there_are_no_colours(spm: Served) -> None:
    assert "\x1b" not in shown(spm, PROMPT)
    assert not re.search(r"\x1b\[[\d;]*[34]8;", shown(spm, PROMPT, env=COLOURS | {"NO_COLOR": "1"}))


def test_each_token_has_the_colour_of_its_probability(spm: Served) -> None:
    said = shown(spm, PROMPT, env=COLOURS)
    spans = [(style, text) for style, text in ANSI.findall(said.partition("token")[0]) if text.strip("\n")]
    wanted = entries(spm, PROMPT, 9, 1)
    coloured = [(style, text) for style, text in spans if "48;2;" in style]
    assert [text for _, text in coloured] == [entry.token for entry in wanted[1:]]
    for (style, _), entry in zip(coloured, wanted[1:], strict=True):
        assert entry.logprob is not None
        bound = next(bound for bound, _ in probabilities.SHADES if math.exp(entry.logprob) <= bound)
        ground = dict(probabilities.SHADES)[bound].bgcolor
        assert ground is not None
        assert ground.triplet is not None
        assert style.endswith("48;2;{};{};{}".format(*ground.triplet))


def test_a_character_of_several_tokens_is_shown_once() -> None:
    logprobs = Logprobs(["bytes:\\xe2\\x82", "bytes:\\xac", "x"], [-1.0, -2.0, -3.0], [{}, {}, {}], [5, 5, 6])
    shades = [probabilities._shade(p) for p in logprobs.token_logprobs]
    text = probabilities._text("€x", logprobs.text_offset, shades)
    assert text.plain == "€x"
    assert [(text.plain[s.start : s.end], s.style) for s in text.spans] == [("€", shades[1]), ("x", shades[2])]


def luminance(triplet: tuple[int, int, int]) -> float:
    """Relative luminance, as WCAG has it."""
    red, green, blue = (c / 3294.6 if c <= 10 else ((c / 255 + 0.055) / 1.055) ** 2.4 for c in triplet)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def test_letters_can_be_read_on_every_colour_and_colours_grow_lighter() -> None:
    pairs = [
        [luminance(colour.triplet) for colour in (style.color, style.bgcolor) if colour and colour.triplet]
        for _, style in probabilities.SHADES
    ]
    for letters, ground in pairs:
        light, dark = max(letters, ground), min(letters, ground)
        assert (light + 0.05) / (dark + 0.05) >= 4.5
    assert all(a < b for (_, a), (_, b) in pairwise(pairs))


@pytest.mark.parametrize(
    ("token", "seen"), [(" a", "' a'"), ("\n\t", r"'\n\t'"), ("\u202e", r"'\u202e'"), ("bytes:\\xff", "bytes:\\xff")]
)
def test_what_does_not_print_is_seen(token: str, seen: str) -> None:
    assert probabilities.visible(token) == seen


@pytest.mark.parametrize(
    ("probability", "told"), [(1.0, "100.0%"), (0.5, "50.0%"), (0.001, "0.1%"), (0.0004, "0.04%"), (1e-9, "1e-07%")]
)
def test_small_probabilities_keep_a_digit(probability: float, told: str) -> None:
    assert probabilities.percent(math.log(probability)) == told


def test_logprobs_alone_make_the_same_table(spm: Served) -> None:
    asked = ("--echo", "--temperature", "0", "--max-tokens", "9", "--logprobs", str(probabilities.N_LIKELIEST))
    assert printed("complete", "--url", spm.server.url, PROMPT, *asked) == shown(spm, PROMPT)


def test_a_choice_of_nothing_is_an_empty_table(spm: Served) -> None:
    said = printed("complete", "--url", spm.server.url, "a", "--probabilities", "--max-tokens", "0")
    assert said.split() == ["token", "probability", "likeliest", "others"]
    assert Choice("", 0).logprobs is None


def test_a_server_may_say_that_a_token_is_surer_than_sure() -> None:
    assert probabilities.percent(1e9) == "100.0%"

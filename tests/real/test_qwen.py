"""A model that was trained to fill gaps: what it inserts makes sense, and is the gap's alone."""

import re
from dataclasses import dataclass

import pytest

from tests.servers import Api, Json, payloads_of, strict_json

pytestmark = pytest.mark.real

MARKS = {"<|fim_prefix|>": 151659, "<|fim_middle|>": 151660, "<|fim_suffix|>": 151661}
ADD: Json = {
    "prompt": "def add(a, b):\n    return ", "suffix": "\n\nprint(add(1, 2))", "temperature": 0, "max_tokens": 16,
}  # fmt: skip


@dataclass(frozen=True)
class Gap:
    """A text with a gap, and a pattern of what belongs there, the whole of it; `stop` where the model would go on."""

    name: str
    prefix: str
    suffix: str
    wanted: str
    stop: str | None = None


GAPS = [
    Gap("a sum", ADD["prompt"], ADD["suffix"] + "\n", r"a \+ b|b \+ a"),
    Gap("the end of a line", "numbers = [1, 2, 3]\nfor n in ", "\n    print(n)\n", r"numbers:"),
    Gap("the middle of a line", "total = 0\nfor i in range(", ") :\n    total += i\n", r"\w+"),
    Gap("an attribute", "import math\n\n\ndef area(radius):\n    return math.", " * radius ** 2\n", r"pi"),
    Gap("within a word", "class Stack:\n    def __in", "__(self):\n        self.items = []\n", r"it"),
    Gap("a condition", "def is_even(n):\n    if ", ":\n        return True\n    return False\n", r"n ?% ?2 ?== ?0"),
    Gap(
        "between functions",
        "def square(x):\n    return x * x\n\n\ndef cube(x):\n",
        "\n\n\nprint(square(2), cube(3))\n",
        r"    return x ?\* ?x ?\* ?x|    return x ?\*\* ?3",
    ),
    Gap("an empty prefix", "", "\nprint(math.sqrt(16))\n", r"\s*(import math|from math import .*)\s*"),
    Gap(
        "names beyond ASCII",
        "# gibt die Länge zurück\ndef länge(wörter):\n    return ",
        "\n\nprint(länge(['ä', 'ö']))\n",
        r"len\(wörter\)",
    ),
    Gap("a stop string", 'capital = {"France": "Paris", "日本": "', '", "Italia": "Roma"}\n', r"Tokyo|東京", stop='"'),
    Gap("a closing tag", "<ul>\n  <li>one</li>\n  <li>two", "\n  <li>three</li>\n</ul>\n", r"</li>"),
    Gap("C", "int max(int a, int b) {\n    return a > ", " ? a : b;\n}\n", r"b"),
]


def check_inserted(choice: Json, suffix: str) -> None:
    """Nothing of the frame and nothing of the suffix."""
    assert "<|" not in choice["text"]
    assert "\ufffd" not in choice["text"]
    assert suffix.strip() not in choice["text"]


def test_a_sum_is_inserted_and_nothing_of_the_suffix(qwen: Api) -> None:
    choice = qwen.choice(**ADD)
    check_inserted(choice, ADD["suffix"])
    assert "print" not in choice["text"]
    assert choice["text"].splitlines()[0] in {"a + b", "b + a"}


@pytest.mark.parametrize("gap", GAPS, ids=lambda gap: gap.name)
def test_what_belongs_in_a_gap_is_inserted(qwen: Api, gap: Gap) -> None:
    choice = qwen.choice(prompt=gap.prefix, suffix=gap.suffix, stop=gap.stop, temperature=0, max_tokens=32)
    check_inserted(choice, gap.suffix)
    assert re.fullmatch(gap.wanted, choice["text"])
    assert choice["finish_reason"] == "stop"


def test_an_empty_suffix_only_continues(qwen: Api) -> None:
    plain = qwen.choice(prompt="import numpy as", temperature=0, max_tokens=8)
    assert plain["text"].startswith(" np")
    assert qwen.choice(prompt="import numpy as", suffix="", temperature=0, max_tokens=8) == plain


def test_the_frame_is_made_of_the_models_own_tokens(qwen: Api) -> None:
    def tokens(text: str) -> list[int]:
        found: list[int] = qwen.http.post("/tokenize", json={"prompt": text}).json()["tokens"]
        return found

    for name, token in MARKS.items():
        assert tokens(name) == [token]
    pre, mid, suf = MARKS.values()
    answer = qwen.complete(**ADD, return_token_ids=True)
    ids = answer["choices"][0]["prompt_token_ids"]
    assert ids == [pre, *tokens(ADD["prompt"]), suf, *tokens(ADD["suffix"]), mid]
    assert answer["usage"]["prompt_tokens"] == len(ids)


def test_the_name_of_a_mark_in_a_text_is_text(qwen: Api) -> None:
    choice = qwen.choice(
        prompt="MARK = '<|fim_middle|>", suffix="<|fim_suffix|>'\n", max_tokens=0, return_token_ids=True
    )
    ids = choice["prompt_token_ids"]
    assert [token for token in ids if token in MARKS.values()] == [MARKS["<|fim_prefix|>"], MARKS["<|fim_suffix|>"],
                                                                   MARKS["<|fim_middle|>"]]  # fmt: skip


def test_a_stream_is_the_plain_answer(qwen: Api) -> None:
    """Its text: numbers may differ in their last digits, since the second prompt comes from the cache."""
    for fields in ({}, {"echo": True}, {"n": 2}, {"prompt": ["def add(a, b):\n    return ", "x = "]}):
        plain, streamed = qwen.choices(**ADD | fields), qwen.stream(**ADD | fields).choices
        for key in ("text", "finish_reason", "index"):
            assert [choice[key] for choice in streamed] == [choice[key] for choice in plain]


def test_editors_get_the_same_text(qwen: Api) -> None:
    text = qwen.choice(**ADD)["text"]
    fim = qwen.http.post("/v1/fim/completions", json=ADD)
    assert fim.json()["choices"][0]["message"]["content"] == text
    llama = {"input_prefix": "def add(a, b):\n", "prompt": "    return ", "input_suffix": ADD["suffix"],
             "temperature": 0, "n_predict": 16, "stream": True}  # fmt: skip
    payloads = payloads_of(qwen.http.post("/infill", json=llama).content)
    assert "".join(strict_json(payload)["content"] for payload in payloads) == text
    assert strict_json(payloads[-1])["tokens_predicted"] == qwen.complete(**ADD)["usage"]["completion_tokens"]


def test_echoed_scores_of_a_model_without_bos_belong_to_their_tokens(qwen: Api) -> None:
    """A score of the neighbouring token would be off by nats; the noise of quantised weights is some tenths."""
    text = "A B C D E F G"
    echoed = qwen.choice(prompt=text, echo=True, logprobs=0, max_tokens=0, return_token_ids=True)
    ids, wanted = echoed["prompt_token_ids"], echoed["logprobs"]["token_logprobs"]
    assert len(ids) == len(wanted)
    assert wanted[0] is None
    for i in range(1, len(ids)):
        bias = {str(ids[i]): 100}
        step = qwen.choice(prompt=ids[:i], max_tokens=1, logprobs=0, temperature=0, logit_bias=bias)
        assert step["logprobs"]["tokens"] == [echoed["logprobs"]["tokens"][i]]
        assert step["logprobs"]["token_logprobs"][0] == pytest.approx(wanted[i], abs=0.6)

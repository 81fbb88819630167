"""Every form of `prompt`: what the model reads, and what is refused."""

from typing import Any

import pytest

from tests import toys
from tests.conftest import Served
from tests.servers import names, shown

HELLO = "Hello, my name is"
TEXTS = [
    HELLO,
    "",
    " ",
    "  two spaces",
    "a\x00b",
    "日本語🙂: Café\n\n.\n",
    "e\u0301 combining, \u200d joined 👩\u200d👩\u200d👧",
    "x" * 300,
    "data: [DONE]\n\n",
    '{"json": "in json"}',
    "\ufeffbom",
    "\u2028line\u2029paragraph\x7f\x01",
]


@pytest.mark.parametrize("text", TEXTS)
def test_a_string_is_read_as_the_tokenizer_has_it_with_bos_once(served: Served, text: str) -> None:
    answer = served.api.complete(prompt=text, max_tokens=4, temperature=0, echo=True, return_token_ids=True)
    (choice,) = answer["choices"]
    prompt = served.oracle.read(text)
    ids = served.oracle.greedy(prompt, 4)
    wanted = served.oracle.complete(ids, 4)
    assert choice["prompt_token_ids"] == prompt.ids
    assert choice["text"] == text + wanted.text
    assert choice["token_ids"] == ids
    assert choice["finish_reason"] == wanted.finish_reason
    assert answer["usage"]["prompt_tokens"] == len(prompt.ids)
    if served.toy.bos is not None:
        assert prompt.ids.count(served.toy.bos) == 1


def test_a_nul_in_a_string_does_not_end_it(served: Served) -> None:
    choice = served.api.choice(prompt="ab\x00cd", max_tokens=0, echo=True, logprobs=0)
    assert choice["text"] == "ab\x00cd"
    assert "".join(choice["logprobs"]["tokens"]) == "ab\x00cd"


def test_a_special_token_in_a_string_is_one_id(served: Served) -> None:
    toy = served.toy
    for token in sorted(served.oracle.special - {toy.bos}):
        text = f"a{toy.names[token]}b"
        choice = served.api.choice(prompt=text, max_tokens=1, echo=True, logprobs=0, return_token_ids=True)
        assert choice["prompt_token_ids"].count(token) == 1
        assert choice["prompt_token_ids"] == served.oracle.read(text).ids
        assert choice["text"].startswith(text)
        assert toy.names[token] in choice["logprobs"]["tokens"]


def test_bos_written_in_the_string_is_not_doubled(spm: Served) -> None:
    sent = spm.api.complete(prompt="<s>" + HELLO, max_tokens=3, temperature=0, return_token_ids=True)
    added = spm.api.complete(prompt=HELLO, max_tokens=3, temperature=0, return_token_ids=True)
    assert sent["choices"] == added["choices"]
    assert sent["usage"]["prompt_tokens"] == added["usage"]["prompt_tokens"]


def test_no_bos_is_added_where_the_model_asks_for_none(bpe: Served) -> None:
    choice = bpe.api.choice(prompt=HELLO, max_tokens=1, return_token_ids=True)
    assert choice["prompt_token_ids"] == [bpe.toy.piece(word) for word in ("Hello", ",", " my", " name", " is")]


def test_an_empty_prompt_begins_a_document(served: Served) -> None:
    toy = served.toy
    start = toy.eos if toy.bos is None else toy.bos
    wanted = served.api.choice(prompt=[start], max_tokens=5, temperature=0, return_token_ids=True)
    assert wanted["token_ids"] == toy.greedy([start], 5)
    for prompt in ("", [""], None):
        answer = served.api.complete(prompt=prompt, max_tokens=5, temperature=0, return_token_ids=True)
        assert answer["choices"] == [wanted]
        assert answer["usage"]["prompt_tokens"] == 1
    # The start is the server's own: it is not echoed, and has no entry.
    echoed = served.api.choice(prompt="", max_tokens=1, temperature=0, echo=True, logprobs=1)
    assert len(echoed["logprobs"]["tokens"]) == 1
    assert echoed["logprobs"]["text_offset"] == [0]
    assert echoed["logprobs"]["token_logprobs"][0] is not None


def test_token_ids_are_read_as_they_are(served: Served) -> None:
    toy = served.toy
    ids = served.oracle.tokenize(HELLO)
    for sent in (ids, [toy.eos, *ids], ids * 20, [0], [toy.n_vocab - 1]):
        answer = served.api.complete(prompt=sent, max_tokens=3, temperature=0, return_token_ids=True)
        assert answer["choices"][0]["prompt_token_ids"] == sent
        assert answer["choices"][0]["token_ids"] == toy.greedy(sent, 3)
        assert answer["usage"]["prompt_tokens"] == len(sent)


def test_ids_of_a_text_echo_as_the_text(served: Served) -> None:
    for text in (HELLO, "日本 🙂", "  two"):
        sent = served.oracle.read(text)
        by_ids = served.api.choice(prompt=sent.ids, max_tokens=5, temperature=0, echo=True)
        by_text = served.api.choice(prompt=text, max_tokens=5, temperature=0, echo=True)
        assert by_ids == by_text


def test_a_list_of_one_is_the_same_as_its_item(served: Served) -> None:
    ids = served.oracle.tokenize(HELLO)
    for item in (HELLO, ids):
        request: dict[str, Any] = {"max_tokens": 8, "seed": 5, "logprobs": 2, "echo": True}
        assert served.api.choices(prompt=item, **request) == served.api.choices(prompt=[item], **request)


def test_prompts_of_a_list_keep_their_order(served: Served) -> None:
    toy = served.toy
    texts = ["a", "Hello", "", "é", "a"]
    answer = served.api.complete(prompt=texts, max_tokens=4, temperature=0, echo=True, n=2)
    prompts = [served.oracle.read(text) for text in texts]
    wanted = [text + served.oracle.complete(served.oracle.greedy(p, 4), 4).text
              for text, p in zip(texts, prompts, strict=True) for _ in range(2)]  # fmt: skip
    assert [choice["text"] for choice in answer["choices"]] == wanted
    assert answer["usage"]["prompt_tokens"] == sum(len(p.ids) for p in prompts)
    assert answer["usage"]["completion_tokens"] == 4 * 10
    ids = [[toy.piece("a")], [toy.piece("Hello"), toy.piece("a")]]
    choices = served.api.choices(prompt=ids, max_tokens=2, temperature=0, return_token_ids=True)
    assert [choice["token_ids"] for choice in choices] == [toy.greedy(prompt, 2) for prompt in ids]


def test_two_hundred_prompts_in_a_list(served: Served) -> None:
    ids = [[token] for token in range(200)]
    choices = served.api.choices(prompt=ids, max_tokens=1, temperature=0, return_token_ids=True)
    assert [choice["token_ids"] for choice in choices] == [served.toy.greedy(prompt, 1) for prompt in ids]


BAD_PROMPTS: list[tuple[Any, Any]] = [
    ([], "empty"),
    ([[]], "empty"),
    ([[1], []], "empty"),
    (["a", 1], "mixes"),
    ([1, "a"], "mixes"),
    ([[1], "a"], "mixes"),
    (["a", [1]], "mixes"),
    ([1, [1]], "mixes"),
    ([[1], 1], "mixes"),
    (True, True),
    (1, "1"),
    (1.5, "1.5"),
    ({}, "{}"),
    ([True], [True]),
    ([[True]], [[True]]),
    ([1.5], "1.5"),
    ([1.0], "1.0"),
    ([[1.5]], "1.5"),
    ([None], [None]),
    (["a", None], ["a", None]),
    ([[None]], [[None]]),
    ([["a"]], [["a"]]),
    ([[[1]]], "[[[1]]]"),
    ([-1], "-1"),
    ([[1], [-1]], "-1"),
    ([1, 999999], "999999"),
    ([2**31], str(2**31)),
    ([2**32], str(2**32)),
    ([2**32 + 5], str(2**32 + 5)),
    ([5279552648203111001], "5279552648203111001"),
    ([-(2**63)], str(-(2**63))),
    ([2**64], str(2**64)),
    ([10**40], "10"),
]


@pytest.mark.parametrize(("prompt", "named"), BAD_PROMPTS, ids=shown)
def test_a_bad_prompt_is_refused_by_name(served: Served, prompt: Any, named: Any) -> None:
    error = served.api.refused(prompt=prompt)
    assert error["param"] == "prompt"
    assert error["type"] == "invalid_request_error"
    assert named in error["message"] if isinstance(named, str) else names(error["message"], named)


def test_the_first_id_beyond_the_vocabulary_is_refused(served: Served) -> None:
    n_vocab = served.toy.n_vocab
    error = served.api.refused(prompt=[n_vocab])
    assert f"0..{n_vocab - 1}" in error["message"]
    assert str(n_vocab) in error["message"]


def test_a_missing_prompt_is_refused(served: Served) -> None:
    assert served.api.refused(max_tokens=1)["param"] == "prompt"


def test_one_bad_prompt_refuses_the_whole_list_also_streamed(served: Served) -> None:
    for stream in (False, True):
        error = served.api.refused(prompt=[[1], [2], [served.toy.n_vocab]], stream=stream)
        assert error["param"] == "prompt"


@pytest.mark.parametrize(("n_prompts", "fields"), [(16385, {}), (129, {"n": 128}), (820, {"best_of": 20})])
def test_more_candidates_than_memory_is_kept_for_are_refused(served: Served, n_prompts: int, fields: Any) -> None:
    error = served.api.refused(prompt=["a"] * n_prompts, **fields)
    assert error["param"] == "prompt"
    assert str(n_prompts) in error["message"]
    assert "16384" in error["message"]


def test_only_the_last_tokens_are_read_when_truncated(served: Served) -> None:
    ids = served.oracle.read(HELLO).ids
    for last in (1, 3, len(ids), len(ids) + 5):
        for prompt in (HELLO, ids):
            answer = served.api.complete(
                prompt=prompt, truncate_prompt_tokens=last, max_tokens=2, temperature=0, return_token_ids=True
            )
            (choice,) = answer["choices"]
            assert choice["prompt_token_ids"] == ids[-last:]
            assert choice["token_ids"] == served.toy.greedy(ids, 2)
            assert answer["usage"]["prompt_tokens"] == len(ids[-last:])
    for bad in (0, -1, True, 1.5, "3"):
        assert served.api.refused(prompt=HELLO, truncate_prompt_tokens=bad)["param"] == "truncate_prompt_tokens"


def test_a_truncated_prompt_may_have_been_longer_than_the_context(bpe: Served) -> None:
    choice = bpe.api.choice(prompt="a" * 5000, truncate_prompt_tokens=500, max_tokens=12, seed=1, return_token_ids=True)
    assert choice["prompt_token_ids"] == [bpe.toy.piece("a")] * 500


def test_prompts_of_every_structural_token(served: Served) -> None:
    for text in sorted(toys.STRUCTURAL):
        if served.toy.fim is not None and text in toys.TWINS:
            continue
        token = served.toy.piece(text)
        if text == toys.UNIFORM:
            continue
        choice = served.api.choice(prompt=[token], max_tokens=6, temperature=0, return_token_ids=True)
        ids = served.toy.greedy([token], 6)
        wanted = served.oracle.complete(ids, 6)
        assert (choice["token_ids"], choice["text"], choice["finish_reason"]) == (
            ids,
            wanted.text,
            wanted.finish_reason,
        )

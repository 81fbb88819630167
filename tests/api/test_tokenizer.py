"""Text to tokens and back, at the root and under /v1."""

from typing import Any

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.conftest import Served
from tests.servers import Json, envelope, strict_json
from tests.toys import EMOJI

ROOTS = ["", "/v1"]
TEXTS = [
    "", " ", "  ", "a", " a", "Hello, my name is", "\n", "a\r\n\tb", "\x00", "é", "日本", EMOJI, "e\u0301", "\ufeffa",
    "\ufffd", "\u200d", "a" * 3000, "<|mark|>", "<|mark|> a", "a <|mark|>", "<|mark|><|mark|>b", "<|mark",
]  # fmt: skip


def ask(served: Served, path: str, **fields: Any) -> Json:
    response = served.api.http.post(path, json=fields)
    assert response.status_code == 200, response.text
    assert response.headers["content-type"].startswith("application/json")
    body: Json = strict_json(response.content)
    return body


def tokenize(served: Served, text: str, root: str = "", **fields: Any) -> list[int]:
    body = ask(served, f"{root}/tokenize", prompt=text, **fields)
    assert set(body) == {"tokens", "count", "max_model_len"}
    assert body["count"] == len(body["tokens"])
    assert body["max_model_len"] == (8192 if served.toy.fim is None else 512)
    tokens: list[int] = body["tokens"]
    return tokens


def detokenize(served: Served, tokens: list[int], root: str = "") -> str:
    body = ask(served, f"{root}/detokenize", tokens=tokens)
    assert set(body) == {"prompt"}
    text: str = body["prompt"]
    return text


@pytest.mark.parametrize("root", ROOTS)
@pytest.mark.parametrize("text", TEXTS, ids=lambda text: repr(text[:20]))
def test_tokens_are_the_models_with_bos_unless_it_is_declined(served: Served, text: str, root: str) -> None:
    bare = served.oracle.tokenize(text)
    bos = [] if served.toy.bos is None else [served.toy.bos]
    assert tokenize(served, text, root, add_special_tokens=False) == bare
    for fields in ({}, {"add_special_tokens": True}, {"add_special_tokens": None}):
        assert tokenize(served, text, root, **fields) == bos + bare


def test_tokens_are_what_a_completion_reads(served: Served) -> None:
    for text in TEXTS[1:]:
        if len(text) < 400:
            choice = served.api.choice(prompt=text, max_tokens=0, return_token_ids=True)
            assert choice["prompt_token_ids"] == tokenize(served, text)


def test_bos_is_not_put_twice(spm: Served) -> None:
    ids = [spm.toy.bos, *spm.oracle.tokenize("<s>a")[1:]]
    assert tokenize(spm, "<s>a") == ids
    assert tokenize(spm, "<s>a", add_special_tokens=False) == ids


def test_special_tokens_in_a_text_are_parsed(served: Served) -> None:
    toy = served.toy
    for name in ("<|mark|>", toy.names[toy.eos]):
        assert tokenize(served, name, add_special_tokens=False) == [toy.id(name)]
        assert toy.id(name) in tokenize(served, f"a{name}b")
        assert detokenize(served, [toy.id(name)]) == name


@pytest.mark.parametrize("root", ROOTS)
def test_the_text_of_tokens_is_their_text(served: Served, root: str) -> None:
    for text in TEXTS:
        assert detokenize(served, tokenize(served, text, root, add_special_tokens=False), root) == text


def test_tokens_with_bos_give_their_text_behind_its_name(spm: Served) -> None:
    ids = tokenize(spm, "Hello")
    assert detokenize(spm, ids) == "<s>Hello"
    assert tokenize(spm, detokenize(spm, ids)) == ids


NAMES = ["<s>", "</s>", "<|mark|>", "<|endoftext|>", "<|fim_prefix|>", "<|file_sep|>"]
ANY_TEXT = st.lists(st.one_of(st.text(max_size=12), st.sampled_from([*NAMES, " ", "  ", "\n\n", " the"])), max_size=6)


@settings(max_examples=80, deadline=None)
@given(parts=ANY_TEXT)
def test_any_text_survives_the_way_there_and_back(spm: Served, bpe: Served, parts: list[str]) -> None:
    text = "".join(parts)
    for served in (spm, bpe):
        assert detokenize(served, tokenize(served, text, add_special_tokens=False)) == text


def test_bytes_that_are_no_text_are_replaced_and_cut_ones_dropped(served: Served) -> None:
    byte = served.toy.byte
    assert detokenize(served, [byte(0xFF), byte(0x61)]) == "\ufffda"
    assert detokenize(served, [byte(0x61), byte(0xE2), byte(0x82)]) == "a"
    assert detokenize(served, [byte(0xE2), byte(0x82), byte(0xAC)]) == "€"
    assert detokenize(served, []) == ""


def test_every_token_has_a_text(served: Served) -> None:
    """Between two letters, so that it is neither first nor last: its own bytes come back."""
    a = served.toy.piece("a")
    for token in range(served.toy.n_vocab):
        name = served.oracle.name(token)
        if "\ufffd" not in name.decode(errors="replace"):
            text = detokenize(served, [a, token, a])
            after = "a"
            assert text == f"a{name.decode()}{after}"


@pytest.mark.parametrize("path", ["/detokenize", "/v1/detokenize"])
def test_an_id_that_is_none_is_refused(served: Served, path: str) -> None:
    n_vocab = served.toy.n_vocab
    for bad in (-1, n_vocab, 2**31, 2**63, -(2**63), 2**70):
        response = served.api.http.post(path, json={"tokens": [1, bad]})
        assert response.status_code == 400
        error = envelope(response)
        assert error["param"] == "tokens"
        assert str(bad) in error["message"]
    assert str(n_vocab - 1) in envelope(served.api.http.post(path, json={"tokens": [n_vocab]}))["message"]
    assert detokenize(served, [n_vocab - 1]) == served.toy.names[-1]


BAD: list[tuple[str, Any, str | None]] = [
    ("tokenize", {}, None),
    ("tokenize", {"prompt": None}, "prompt"),
    ("tokenize", {"prompt": 1}, "prompt"),
    ("tokenize", {"prompt": ["a"]}, "prompt"),
    ("tokenize", {"prompt": "a", "add_special_tokens": 1}, "add_special_tokens"),
    ("tokenize", {"prompt": "a", "add_special_tokens": "true"}, "add_special_tokens"),
    ("tokenize", [], None),
    ("tokenize", "a", None),
    ("detokenize", {}, None),
    ("detokenize", {"tokens": None}, "tokens"),
    ("detokenize", {"tokens": "a"}, "tokens"),
    ("detokenize", {"tokens": [1.5]}, "tokens"),
    ("detokenize", {"tokens": ["1"]}, "tokens"),
    ("detokenize", {"tokens": [True]}, "tokens"),
    ("detokenize", {"tokens": [[1]]}, "tokens"),
    ("detokenize", {"tokens": 1}, "tokens"),
]


@pytest.mark.parametrize("root", ROOTS)
@pytest.mark.parametrize(("path", "body", "param"), BAD, ids=str)
def test_a_bad_body_is_refused_by_name(spm: Served, root: str, path: str, body: Any, param: str | None) -> None:
    response = spm.api.http.post(f"{root}/{path}", json=body)
    assert response.status_code == 400
    error = envelope(response)
    assert error["type"] == "invalid_request_error"
    assert error["param"] == param
    if body == {}:
        assert ("prompt" if path == "tokenize" else "tokens") in error["message"]


@pytest.mark.parametrize("path", ["/tokenize", "/v1/detokenize"])
@pytest.mark.parametrize("body", [b"", b"{", b"\xff", b'{"prompt": "\\ud800"}', b'{"tokens": [1,]}', b"[" * 100_000])
def test_what_is_no_json_is_refused(spm: Served, path: str, body: bytes) -> None:
    response = spm.api.http.post(path, content=body)
    assert response.status_code == 400
    envelope(response)


def test_what_clients_send_besides_is_ignored(served: Served) -> None:
    extra: Json = {"model": "any", "return_token_strs": False, "chat_template": None}
    assert tokenize(served, "Hello", **extra) == tokenize(served, "Hello")
    assert ask(served, "/detokenize", model="any", tokens=[served.toy.piece("a")]) == {"prompt": "a"}
    response = served.api.http.post("/tokenize/", content=b'{"prompt": "a"}')
    assert response.status_code == 200


@pytest.mark.parametrize("root", ROOTS)
def test_the_tokenizer_names_its_special_tokens(spm: Served, bpe: Served, root: str) -> None:
    def info(served: Served) -> Json:
        response = served.api.http.get(f"{root}/tokenizer_info")
        assert response.status_code == 200
        body: Json = strict_json(response.content)
        return body

    nothing = {"pad_token": None, "chat_template": None}
    assert info(spm) == nothing | {
        "bos_token": "<s>", "eos_token": "</s>", "add_bos_token": True, "model_max_length": 8192,
    }  # fmt: skip
    assert info(bpe) == nothing | {
        "bos_token": "<|endoftext|>", "eos_token": "<|endoftext|>", "add_bos_token": False, "model_max_length": 512,
    }  # fmt: skip
    for served in (spm, bpe):
        name = info(served)["eos_token"]
        assert tokenize(served, name, add_special_tokens=False) == [served.toy.eos]


@pytest.mark.parametrize(("method", "path"), [("GET", "/tokenize"), ("GET", "/v1/detokenize"),
                                              ("POST", "/tokenizer_info")])  # fmt: skip
def test_a_wrong_method_is_405(spm: Served, method: str, path: str) -> None:
    response: httpx.Response = spm.api.http.request(method, path)
    assert response.status_code == 405
    envelope(response)

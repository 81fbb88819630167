"""Every error has the one envelope and its own status, and harms nobody else."""

import re
import socket
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from tests.conftest import Served
from tests.servers import Json, envelope

URL = "/v1/completions"


def still_works(served: Served) -> None:
    assert served.api.choice(prompt="a", model=served.toy.name, max_tokens=1)
    assert served.api.http.get("/health").status_code == 200


NOT_JSON: list[tuple[str, bytes]] = [
    ("empty", b""),
    ("blank", b" \n"),
    ("cut", b'{"prompt": "a"'),
    ("trailing comma", b'{"prompt": "a",}'),
    ("single quotes", b"{'prompt': 'a'}"),
    ("two values", b'{"prompt": "a"} {"prompt": "b"}'),
    ("NaN", b'{"prompt": "a", "temperature": NaN}'),
    ("Infinity", b'{"prompt": "a", "temperature": Infinity}'),
    ("minus Infinity", b'{"prompt": "a", "unknown": -Infinity}'),
    ("comment", b'{"prompt": "a" /* no */}'),
    ("form", b"prompt=a&max_tokens=1"),
    ("invalid UTF-8", b'{"prompt": "a\xff"}'),
    ("a cut character", b'{"prompt": "a\xe2\x82"}'),
    ("overlong UTF-8", b'{"prompt": "\xc0\x80"}'),
    ("an encoded surrogate", b'{"prompt": "\xed\xa0\xbd"}'),
    ("a control character", b'{"prompt": "a\nb"}'),
    ("a lone surrogate", b'{"prompt": "\\ud83d"}'),
    ("a lone low surrogate", b'{"prompt": "\\ude00 a"}'),
    ("a lone surrogate in a list", b'{"prompt": ["a", "\\ud83d!"]}'),
    ("a lone surrogate in a stop", b'{"prompt": "a", "stop": ["\\udfff"]}'),
    ("a lone surrogate in a key", b'{"prompt": "a", "logit_bias": {"\\ud800": 1}}'),
    ("a lone surrogate in an unknown field", b'{"prompt": "a", "other": "\\ud800"}'),
    ("UTF-16", '{"prompt": "a"}'.encode("utf-16")),
    ("deep list", b'{"prompt": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"),
    ("deep object", b'{"other": ' + b'{"a":' * 100_000 + b"1" + b"}" * 100_000 + b"}"),
    ("deep and cut", b"[" * 100_000),
    ("a list", b"[]"),
    ("a string", b'"a"'),
    ("null", b"null"),
    ("a number", b"12"),
]


@pytest.mark.parametrize("body", [pytest.param(body, id=name) for name, body in NOT_JSON])
def test_a_body_that_is_no_request_is_refused(spm: Served, strict: Served, body: bytes) -> None:
    for served in (spm, strict):
        response = served.api.raw(body)
        assert response.status_code == 400, response.text[:300]
        error = envelope(response)
        assert error["type"] == "invalid_request_error"
        assert error["code"] is None
        still_works(served)


def test_a_byte_order_mark_is_accepted_or_refused(spm: Served) -> None:
    response = spm.api.raw(b'\xef\xbb\xbf{"prompt": "a", "max_tokens": 1}')
    if response.status_code != 200:
        assert response.status_code == 400
        envelope(response)
    still_works(spm)


def test_a_surrogate_pair_is_a_character(served: Served) -> None:
    response = served.api.raw(b'{"prompt": "\\ud83d\\ude00", "echo": true, "max_tokens": 0}')
    assert response.json()["choices"][0]["text"] == "\U0001f600"


@pytest.mark.parametrize("method", ["GET", "PUT", "PATCH", "DELETE", "HEAD"])
def test_a_wrong_method_is_405(spm: Served, method: str) -> None:
    response = spm.api.http.request(method, URL)
    assert response.status_code == 405
    assert response.headers["x-request-id"]
    assert "POST" in response.headers["allow"]
    if method != "HEAD":
        assert envelope(response)["type"] == "invalid_request_error"
    still_works(spm)


def test_where_get_is_allowed_head_is(spm: Served) -> None:
    response = spm.api.http.request("DELETE", "/v1/models")
    assert response.status_code == 405
    assert {"GET", "HEAD"} <= set(response.headers["allow"].split(", "))


@pytest.mark.parametrize(
    ("path", "status"), [("/v1/models", 200), ("/health", 200), ("/docs", 200), ("/v1/models/x", 404), ("/x", 404)]
)
def test_head_is_answered_as_get_without_the_body(spm: Served, path: str, status: int) -> None:
    head, get = spm.api.http.head(path), spm.api.http.get(path)
    assert head.status_code == get.status_code == status
    assert head.content == b""
    for name in ("content-type", "content-length"):
        assert head.headers[name] == get.headers[name]
    still_works(spm)


@pytest.mark.parametrize("path", ["/v1/models", "/health", "/docs", "/schema/openapi.json"])
def test_posting_to_what_is_only_read_is_405(spm: Served, path: str) -> None:
    response = spm.api.http.post(path, json={})
    assert response.status_code == 405
    assert envelope(response)["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    "path",
    ["/", "/v1", "/v2/completions", "/v1/completions/x", "/completion", "/v1/chat/completions", "/%00", "/%ff",
     "/schema", "/schema/swagger", "/docs/x", "/" + "x" * 5000],
)  # fmt: skip
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_an_unknown_url_is_404(spm: Served, path: str, method: str) -> None:
    response = spm.api.http.request(method, path)
    assert response.status_code == 404
    error = envelope(response)
    assert error["code"] == "unknown_url"
    assert error["type"] == "invalid_request_error"
    assert error["param"] is None


def test_a_body_over_32_mib_is_413_and_one_below_is_read(spm: Served) -> None:
    limit = 32 << 20
    for declared in (True, False):
        body = b'{"prompt": "' + b"a" * limit + b'"}'
        pieces = (body[i : i + (1 << 20)] for i in range(0, len(body), 1 << 20))
        response = spm.api.http.post(URL, content=body if declared else pieces)
        assert response.status_code == 413
        error = envelope(response)
        assert error["type"] == "invalid_request_error"
        assert str(limit) in error["message"]
        still_works(spm)
    padding = b" " * (limit - 40)
    response = spm.api.raw(b'{"prompt": "a",' + padding + b'"max_tokens": 1}')
    assert response.status_code == 200


@pytest.mark.parametrize("model", ["nope", "toy", "TOY-SPM", " toy-spm", "a/b", "gpt-3.5-turbo-instruct", "\x00", "é"])
@pytest.mark.parametrize("stream", [False, True])
def test_an_unknown_model_is_404_and_the_served_ones_are_listed(spm: Served, model: str, stream: bool) -> None:
    error = spm.api.refused(404, prompt="a", model=model, stream=stream)
    assert error["code"] == "model_not_found"
    assert error["type"] == "invalid_request_error"
    assert error["param"] == "model"
    assert "toy-spm" in error["message"]
    assert "other/name" in error["message"]


def test_a_missing_empty_or_null_model_is_the_default_one(spm: Served) -> None:
    for fields in ({}, {"model": ""}, {"model": None}):
        assert spm.api.complete(prompt="a", max_tokens=1, **fields)["model"] == "toy-spm"
    for name in ("toy-spm", "other/name"):
        assert spm.api.complete(prompt="a", max_tokens=1, model=name)["model"] == name
        assert spm.api.stream(prompt="a", max_tokens=1, model=name).chunks[0]["model"] == name


def test_a_request_id_is_echoed_or_made_on_every_response(spm: Served) -> None:
    http = spm.api.http
    made = set()
    requests: list[tuple[str, str, Json | None, int]] = [
        ("POST", URL, {"prompt": "a", "max_tokens": 1}, 200),
        ("POST", URL, {"prompt": "a", "max_tokens": 1, "stream": True}, 200),
        ("POST", URL, {}, 400),
        ("POST", URL, {"prompt": "a", "model": "nope"}, 404),
        ("GET", URL, None, 405),
        ("GET", "/nowhere", None, 404),
        ("GET", "/v1/models", None, 200),
        ("GET", "/v1/models/nope", None, 404),
        ("GET", "/health", None, 200),
        ("GET", "/docs", None, 200),
    ]
    for method, path, body, status in requests:
        response = http.request(method, path, json=body, headers={"x-request-id": "mine-1234"})
        assert response.status_code == status
        assert response.headers.get_list("x-request-id") == ["mine-1234"]
        response = http.request(method, path, json=body)
        assert re.fullmatch(r"[\x21-\x7e]{8,128}", response.headers["x-request-id"])
        made.add(response.headers["x-request-id"])
    assert len(made) == len(requests)


@pytest.mark.parametrize("name", [b"x" * 5000, b"", b"a b", b"\xe9", b"tab\there"])
def test_a_request_id_that_is_no_id_is_replaced(spm: Served, name: bytes) -> None:
    response = spm.api.http.get("/health", headers=[(b"x-request-id", name)])
    assert response.status_code == 200
    assert re.fullmatch(r"[\x21-\x7e]{8,128}", response.headers["x-request-id"])


def test_a_trailing_slash_and_a_missing_content_type_are_fine(spm: Served) -> None:
    body = b'{"prompt": "a", "max_tokens": 2, "seed": 1}'
    wanted = spm.api.raw(body).json()["choices"]
    http = spm.api.http
    for path, headers in (
        (URL + "/", {"content-type": "application/json"}),
        (URL, {}),
        (URL, {"content-type": "application/x-www-form-urlencoded"}),
        (URL, {"content-type": "text/plain"}),
        (URL, {"content-type": "application/json; charset=utf-8"}),
        (URL, {"content-type": "nonsense"}),
        (URL + "?a=b", {}),
    ):
        response = http.post(path, content=body, headers=headers)
        assert response.status_code == 200, (path, headers)
        assert response.json()["choices"] == wanted
    assert http.get("/v1/models/").status_code == 200
    assert http.get("/health/").status_code == 200


def raw_exchange(url: str, data: bytes) -> bytes:
    """What the server answers to bytes that no HTTP library would send."""
    parts = urlsplit(url)
    assert parts.hostname
    with socket.create_connection((parts.hostname, parts.port or 80), timeout=60) as connection:
        connection.sendall(data)
        connection.shutdown(socket.SHUT_WR)
        received = b""
        while piece := connection.recv(1 << 16):
            received += piece
    return received


@pytest.mark.parametrize(
    "data",
    [
        b"nonsense\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\n{",
        b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: x\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"GET /health HTTP/1.0\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"",
    ],
    ids=["no HTTP", "cut body", "bad length", "bad chunk", "HTTP/1.0", "TLS", "nothing"],
)
def test_broken_http_breaks_nothing_else(spm: Served, data: bytes) -> None:
    n_before = spm.server.said.count("Traceback")
    answer = raw_exchange(spm.api.url, data)
    assert not answer.startswith(b"HTTP/1.1 5")
    still_works(spm)
    assert spm.server.said.count("Traceback") == n_before, "whoever hangs up is no fault of the server"


def test_errors_of_strict_mode_have_the_envelope_too(strict: Served) -> None:
    error = strict.api.refused(prompt="a", unknown_thing=1)
    assert error["param"] == "unknown_thing"
    assert error["type"] == "invalid_request_error"


def test_answers_are_json_in_utf8_not_escaped(served: Served) -> None:
    response = served.api.post(prompt="日本🙂", echo=True, max_tokens=0)
    assert response.headers["content-type"].startswith("application/json")
    assert "日本🙂".encode() in response.content


def test_many_bad_requests_in_a_row_leave_one_connection_usable(spm: Served) -> None:
    with httpx.Client(base_url=spm.api.url, timeout=60) as client:
        bodies: list[Any] = [b"", b"{", b'{"prompt": []}', b'{"prompt": "a", "n": 0}', b'{"prompt": "a", "model": "x"}']
        for _ in range(10):
            for body in bodies:
                assert client.post(URL, content=body).status_code in {400, 404}
        assert client.post(URL, json={"prompt": "a", "max_tokens": 1}).status_code == 200


@pytest.mark.parametrize(("body", "word"), [(b'{"prompt": "\\ud83d"}', "surrogate"), (b"", "empty"), (b"  ", "empty")])
def test_a_body_that_only_looks_cut_off_is_explained(spm: Served, body: bytes, word: str) -> None:
    response = spm.api.http.post("/v1/completions", content=body)
    assert response.status_code == 400
    assert word in response.json()["error"]["message"]

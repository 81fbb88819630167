"""API keys: who has none is told so, as OpenAI tells it; and nobody is shown one."""

import hmac
import http.client
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

import openai
import pytest

from app.api.auth import KeyGuard
from app.errors import Unauthorized
from tests.conftest import FILED_KEYS, KEYS, Served
from tests.servers import envelope, one_line, segue

BODY = b'{"prompt": "a", "max_tokens": 1}'
WRONG = "sk-wrong-6c2d90"

REFUSED: list[bytes | None] = [
    None,
    b"",
    b" ",
    b"Bearer",
    b"Bearer ",
    b"Bearer   ",
    b"bearer ",
    f"Bearer {WRONG}".encode(),
    f"bearer {WRONG}".encode(),
    f"Bearer {KEYS[0][:-1]}".encode(),
    f"Bearer {KEYS[0]}x".encode(),
    f"Bearer {KEYS[0].upper()}".encode(),
    f"Bearer {KEYS[0]} {KEYS[1]}".encode(),
    f"Bearer {KEYS[0]},{KEYS[1]}".encode(),
    f"Bearer {KEYS[0][:5]} {KEYS[0][5:]}".encode(),
    f"Bearer Bearer {KEYS[0]}".encode(),
    f"Bearer{KEYS[0]}".encode(),
    KEYS[0].encode(),
    f"Basic {KEYS[0]}".encode(),
    f"Token {KEYS[0]}".encode(),
    f"Bearer {FILED_KEYS[0]}\t{FILED_KEYS[1]}".encode(),
    "Bearer ключ".encode(),
    b"Bearer \xff\xfe",
    b"Bearer " + b"x" * 8000,
]


def status_of(served: Served, header: bytes | None, path: str = "/v1/completions", body: bytes = BODY) -> int:
    """What is answered to a header as it is: httpx sends none that ends with a space."""
    parts = urlsplit(served.api.url)
    connection = http.client.HTTPConnection(parts.netloc, timeout=60)
    headers = {} if header is None else {"authorization": header}
    connection.request("POST", path, body, headers)
    response = connection.getresponse()
    read = response.read()
    assert json.loads(read)
    if response.status == 401:
        error = json.loads(read)["error"]
        assert set(error) == {"message", "type", "param", "code"}
        assert (error["type"], error["param"], error["code"]) == ("authentication_error", None, "invalid_api_key")
        assert "API key" in error["message"]
        assert (response.getheader("www-authenticate") or "").startswith("Bearer")
        assert response.getheader("x-request-id")
        assert header is None or len(header) < 12 or header.decode("latin-1")[7:] not in read.decode()
    connection.close()
    return response.status


@pytest.mark.parametrize("header", REFUSED, ids=lambda header: repr(header)[:40])
def test_without_one_of_the_keys_a_request_is_refused(guarded: Served, header: bytes | None) -> None:
    assert status_of(guarded, header) == 401


@pytest.mark.parametrize("key", [*KEYS, *FILED_KEYS])
def test_with_any_of_them_it_is_served(guarded: Served, key: str) -> None:
    for header in (f"Bearer {key}", f"bearer {key}", f"BEARER {key}", f"Bearer  {key} "):
        assert status_of(guarded, header.encode()) == 200


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/v1/completions"),
        ("POST", "/v1/completions/"),
        ("GET", "/v1/models"),
        ("GET", "/v1/models/toy-bpe"),
        ("GET", "/v1/models/nope"),
        ("POST", "/tokenize"),
        ("POST", "/v1/tokenize"),
        ("POST", "/detokenize"),
        ("POST", "/v1/detokenize"),
        ("GET", "/tokenizer_info"),
        ("GET", "/v1/tokenizer_info"),
        ("POST", "/v1/fim/completions"),
        ("POST", "/infill"),
        ("GET", "/props"),
        ("GET", "/metrics"),
        ("GET", "/docs"),
        ("GET", "/schema/openapi.json"),
        ("HEAD", "/docs"),
    ],
)
def test_every_route_but_the_health_is_guarded(guarded: Served, method: str, path: str) -> None:
    for header in ("", f"Bearer {WRONG}"):
        response = guarded.api.http.request(method, path, headers={"authorization": header})
        assert response.status_code == 401, response.text
        assert method == "HEAD" or envelope(response)["code"] == "invalid_api_key"
        assert response.headers["www-authenticate"].startswith("Bearer")
    assert guarded.api.http.request(method, path, json={}).status_code in {200, 400, 404}


def test_the_health_needs_no_key(guarded: Served) -> None:
    for header in ("", f"Bearer {WRONG}", f"Bearer {KEYS[1]}"):
        response = guarded.api.http.get("/health", headers={"authorization": header})
        assert (response.status_code, response.json()) == (200, {"status": "ok"})


@pytest.mark.parametrize("body", [b"", b"{", b'{"prompt": "a", "model": "nope"}', b'{"prompt": "a", "stream": true}'])
def test_the_key_is_asked_for_before_the_request_is_read(guarded: Served, body: bytes) -> None:
    response = guarded.api.raw(body, authorization=f"Bearer {WRONG}")
    assert response.status_code == 401
    envelope(response)


def test_no_key_is_said_by_the_server(guarded: Served) -> None:
    guarded.api.complete(prompt="a", user="somebody", max_tokens=1)
    guarded.api.stream(prompt="a", max_tokens=1)
    guarded.api.refused(prompt=[])
    for header in (KEYS[1], WRONG, f"{FILED_KEYS[0]}x"):
        status_of(guarded, f"Bearer {header}".encode())
    answers = [guarded.api.http.get(path).text for path in ("/props", "/docs", "/schema/openapi.json", "/v1/models")]
    for said in (guarded.server.said, *answers):
        for key in (*KEYS, *FILED_KEYS, WRONG):
            assert key not in said


def test_what_is_sent_is_compared_in_constant_time_with_every_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also with those behind the one that it is: how long it takes tells nothing of which that is."""
    compared: list[tuple[bytes, bytes]] = []
    compare = hmac.compare_digest

    def noted(key: bytes, sent: bytes) -> bool:
        compared.append((key, sent))
        return compare(key, sent)

    monkeypatch.setattr(hmac, "compare_digest", noted)
    guard = KeyGuard(KEYS)
    handler: Any = SimpleNamespace(opt={})
    for sent in (*KEYS, WRONG):
        connection: Any = SimpleNamespace(headers={"authorization": f"Bearer {sent}"})
        if sent == WRONG:
            with pytest.raises(Unauthorized):
                guard(connection, handler)
        else:
            guard(connection, handler)
        assert compared == [(key.encode(), sent.encode()) for key in KEYS]
        compared.clear()


def test_openais_client_raises_an_authentication_error(guarded: Served) -> None:
    base = f"{guarded.api.url}/v1"
    with openai.OpenAI(base_url=base, api_key=WRONG, max_retries=0) as client:
        for stream in (False, True):
            with pytest.raises(openai.AuthenticationError) as raised:
                client.completions.create(model="toy-bpe", prompt="a", max_tokens=1, stream=stream)
            assert raised.value.code == "invalid_api_key"
            assert raised.value.type == "authentication_error"
            assert raised.value.request_id
        with pytest.raises(openai.AuthenticationError):
            client.models.list()
    with openai.OpenAI(base_url=base, api_key=FILED_KEYS[1], max_retries=0) as client:
        assert client.completions.create(model="toy-bpe", prompt="a", max_tokens=1).choices
        assert [model.id for model in client.models.list()] == ["toy-bpe"]


@pytest.mark.parametrize("header", REFUSED, ids=lambda header: repr(header)[:40])
def test_a_server_without_keys_takes_any_and_none(bpe: Served, header: bytes | None) -> None:
    assert status_of(bpe, header) == 200


def unstarted(*flags: str) -> str:
    """What is said, in one line, where the server cannot start with these flags: before it reads the model."""
    done = segue("serve", "--port", "0", "--model", "nowhere.gguf", *flags)
    assert done.returncode == 2, done.stderr[-2000:]
    assert done.stdout == ""
    return one_line(done.stderr)


def test_a_key_file_that_cannot_be_read_ends_the_start(tmp_path: Path) -> None:
    binary = tmp_path / "binary"
    binary.write_bytes(b"sk-\xff\xfe")
    for path in (tmp_path / "nowhere", tmp_path, binary):
        line = unstarted("--api-key-file", str(path))
        assert "api_key_file" in line
        assert str(path) in line


@pytest.mark.parametrize("content", ["", "\n \r\n\t\n"])
def test_a_key_file_without_a_key_ends_the_start(tmp_path: Path, content: str) -> None:
    path = tmp_path / "keys"
    path.write_text(content)
    for flags in ((), ("--api-key", KEYS[0])):
        line = unstarted("--api-key-file", str(path), *flags)
        assert str(path) in line
        assert "no key" in line
        assert KEYS[0] not in line


@pytest.mark.parametrize("key", ["", "  "])
def test_an_empty_key_ends_the_start(key: str) -> None:
    """`--api-key "$UNSET"` must not open the server to an empty bearer."""
    assert "api_key" in unstarted("--api-key", key)
    assert "api_key" in unstarted("--api-key", KEYS[0], "--api-key", key)

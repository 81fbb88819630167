"""What a proxy says, and what a replica left unsaid, as a client sees it."""

import asyncio
from typing import Any

import httpx
import pytest

from app.api.front import Front
from app.api.request_id import RequestId
from tests.servers import envelope, payloads_of, strict_json

Sent = dict[str, Any]
JSON = [(b"content-type", b"application/json")]
EVENTS = [(b"content-type", b"text/event-stream; charset=utf-8")]
PLAIN = [(b"content-type", b"text/plain; charset=utf-8"), (b"x-request-id", b"another")]


def start(status: int, headers: list[tuple[bytes, bytes]]) -> Sent:
    return {"type": "http.response.start", "status": status, "headers": headers}


def body(content: bytes, *, more: bool = False) -> Sent:
    return {"type": "http.response.body", "body": content, "more_body": more}


def answered(*messages: Sent) -> tuple[httpx.Response, str]:
    """The response to a request whose proxy sends these messages, and the id that the proxy was given."""
    seen: list[str] = []

    async def proxy(scope: Any, receive: Any, send: Any) -> None:
        seen.append(dict(scope["headers"])[b"x-request-id"].decode())
        for message in messages:
            await send(message)

    async def ask() -> httpx.Response:
        app: Any = RequestId(Front(proxy))
        transport = httpx.ASGITransport(app=app)
        async with httpx.AsyncClient(transport=transport, base_url="http://here") as client:
            return await client.get("/")

    return asyncio.run(ask()), seen[0]


@pytest.mark.parametrize(
    ("status", "shown", "code"),
    [(429, 429, "server_overloaded"), (503, 503, "shutting_down"), (404, 503, "shutting_down")],
)
def test_a_proxys_own_refusal_has_the_envelope(status: int, shown: int, code: str) -> None:
    response, _ = answered(start(status, PLAIN), body(b"Request dropped", more=True), body(b"."))
    assert response.status_code == shown
    assert response.headers["retry-after"] == "1"
    assert envelope(response)["code"] == code


def test_a_replica_that_died_before_it_answered_is_a_fault() -> None:
    response, request = answered()
    assert response.status_code == 500
    error = envelope(response)
    assert error["type"] == "server_error"
    assert request in error["message"]


def test_a_stream_that_is_broken_off_ends_with_an_error_event() -> None:
    response, request = answered(start(200, EVENTS), body(b'data: {"choices": []}\n\n', more=True))
    assert response.status_code == 200
    first, last = payloads_of(response.content)
    assert first == '{"choices": []}'
    assert request in strict_json(last)["error"]["message"]


@pytest.mark.parametrize(
    ("status", "headers", "content"),
    [
        (200, JSON, b"{}"),
        (400, JSON, b'{"error": {}}'),
        (200, PLAIN, b"success"),
        (200, EVENTS, b"data: [DONE]\n\n"),
        (499, [], b""),
    ],
)
def test_what_the_application_answers_passes(status: int, headers: Any, content: bytes) -> None:
    response, request = answered(start(status, list(headers)), body(content))
    assert (response.status_code, response.content) == (status, content)
    assert response.headers.get_list("x-request-id") == [request]

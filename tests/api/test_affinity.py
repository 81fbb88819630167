"""Which requests go by one name, and that nothing of them is lost on the way."""

import asyncio
import json
from typing import Any

import pytest

from app.api.affinity import HEADER, N_CHARACTERS, N_TOKENS, Affinity, beginning

TEXT = "x" * N_CHARACTERS
IDS = list(range(N_TOKENS))


def name(**fields: Any) -> str | None:
    return beginning(json.dumps(fields).encode())


@pytest.mark.parametrize(("start", "more"), [(TEXT, " and a question"), (IDS, [7, 8])])
def test_prompts_that_begin_alike_have_one_name(start: Any, more: Any) -> None:
    found = {name(prompt=start), name(prompt=start + more), name(prompt=[start, start[:3]], n=2), name(prompt=[start])}
    assert len(found) == 1
    assert None not in found


def test_prompts_that_begin_otherwise_have_others() -> None:
    found = {name(prompt=TEXT), name(prompt="y" + TEXT), name(prompt=IDS), name(prompt=[1, *IDS])}
    assert len(found) == 4


@pytest.mark.parametrize("prompt", [TEXT[1:], IDS[1:], [], [[]], [""], "", None, 3, {"a": 1}, [TEXT[1:], TEXT]])
def test_what_is_short_or_no_prompt_has_none(prompt: Any) -> None:
    assert name(prompt=prompt) is None


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'{"model": "a"}', b"\xff", b"[" * 100_000])
def test_what_is_no_request_has_none(body: bytes) -> None:
    assert beginning(body) is None


def passed(pieces: list[bytes], headers: list[tuple[bytes, bytes]], method: str = "POST") -> tuple[str | None, bytes]:
    """The name and the body that reach the application."""
    messages = [
        {"type": "http.request", "body": piece, "more_body": number < len(pieces)}
        for number, piece in enumerate(pieces, 1)
    ]
    seen: dict[str, Any] = {}

    async def application(scope: Any, receive: Any, send: Any) -> None:
        seen["name"] = dict(scope["headers"]).get(HEADER.encode())
        seen["body"] = b""
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            seen["body"] += message["body"]

    async def receive() -> Any:
        return messages.pop(0) if messages else {"type": "http.disconnect"}

    scope: Any = {"type": "http", "method": method, "headers": headers}
    asyncio.run(Affinity(application)(scope, receive, receive))  # type: ignore[arg-type]  # nothing is sent
    return seen["name"] and seen["name"].decode(), seen["body"]


@pytest.mark.parametrize("size", [7, 100_000])
def test_the_name_is_added_and_the_body_passes_whole(size: int) -> None:
    body = json.dumps({"prompt": TEXT + "é" * size, "max_tokens": 1}).encode()
    pieces = [body[at : at + size] for at in range(0, len(body), size)]
    assert passed(pieces, [(b"host", b"here")]) == (beginning(body), body)
    assert beginning(body)


def test_a_name_that_the_client_chose_stays() -> None:
    body = json.dumps({"prompt": TEXT}).encode()
    assert passed([body], [(HEADER.encode(), b"mine")]) == ("mine", body)


def test_a_client_that_leaves_early_is_passed_on() -> None:
    assert passed([], []) == (None, b"")


def test_what_has_no_body_is_not_waited_for() -> None:
    assert passed([b""], [], method="GET") == (None, b"")

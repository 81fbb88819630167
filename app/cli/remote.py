"""A server elsewhere: any that speaks OpenAI's completions API.

Owns HTTP as a client sees it, and what other servers leave out of their answers; refuses to know who asks.
"""

import os
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, NoReturn

import httpx2
import msgspec

from app.errors import InvalidRequest, Overloaded, SegueError, Unauthorized, Unavailable
from app.schemas import Completion, CompletionRequest

CONNECT_SECONDS = 10.0
"""An answer may take as long as it takes."""

_LACKING = {"id": "", "object": "text_completion", "created": 0, "model": "", "system_fingerprint": ""}
"""What other servers leave out or make null."""
_DATA, _DONE = "data:", "[DONE]"
_LAST_PORT = 65535


class Remote:
    """A server's completions."""

    def __init__(self, client: httpx2.AsyncClient, model: str | None) -> None:
        self._client = client
        self.model = model

    async def answer(self, request: CompletionRequest) -> Completion:
        response = await self._client.post("completions", content=_body(request))
        if not response.is_success:
            _refuse(response)
        return _completion(response.content)

    async def stream(self, request: CompletionRequest) -> AsyncGenerator[Completion, None]:
        is_whole = False
        async with self._client.stream("POST", "completions", content=_body(request)) as response:
            if not response.is_success:
                await response.aread()
                _refuse(response)
            async for line in response.aiter_lines():
                data = line.removeprefix(_DATA).strip()
                if data == _DONE:
                    is_whole = True
                elif line.startswith(_DATA):
                    yield _completion(data)
        if not is_whole:
            raise Unavailable(f"the server's answer is no stream, or broke off: {_DONE} did not come.")


@asynccontextmanager
async def connected(url: str, key: str | None, model: str | None) -> AsyncIterator[Remote]:
    """A server at `url`, with or without /v1 at its end; its first model, unless one is named.

    Raises Unavailable where it cannot be reached, and InvalidRequest where that is no address.
    """
    base = f"{url.rstrip('/').removesuffix('/v1')}/v1/"
    headers = {b"content-type": b"application/json"}
    if key:
        headers[b"authorization"] = b"Bearer " + os.fsencode(key)
    try:
        if (port := httpx2.URL(base).port or 0) > _LAST_PORT:
            raise httpx2.InvalidURL(f"there is no port {port}")
        timeout = httpx2.Timeout(None, connect=CONNECT_SECONDS)
        async with httpx2.AsyncClient(base_url=base, headers=headers, timeout=timeout) as client:
            yield Remote(client, model or await _first_model(client))
    except (httpx2.InvalidURL, httpx2.UnsupportedProtocol) as error:
        raise InvalidRequest(
            f"{url} is no address of a server: {_reason(error)}; http://localhost:8000 is one."
        ) from None
    except httpx2.LocalProtocolError:  # of all that is sent, only the key is not ours
        raise InvalidRequest("the key cannot be sent: HTTP has no such characters in a header.") from None
    except (httpx2.ConnectError, httpx2.ConnectTimeout) as error:
        raise Unavailable(f"{url} cannot be reached: {_reason(error)}; is a server running there?") from None
    except httpx2.HTTPError as error:
        raise Unavailable(f"{url} broke off: {_reason(error)}.") from None


async def _first_model(client: httpx2.AsyncClient) -> str | None:
    """The first name that a server lists; None where it has no list."""
    response = await client.get("models")
    if response.status_code == httpx2.codes.UNAUTHORIZED:
        _refuse(response)
    try:
        name: str = response.json()["data"][0]["id"]
    except (ValueError, LookupError, TypeError):
        return None
    return name


def _reason(error: Exception) -> str:
    return str(error).rstrip(".") or type(error).__name__


def _body(request: CompletionRequest) -> bytes:
    """What was asked alone: others refuse fields that they do not know, null or not."""
    fields = msgspec.to_builtins(request)
    try:
        return msgspec.json.encode({name: value for name, value in fields.items() if value is not None})
    except UnicodeEncodeError:
        raise InvalidRequest("model: its name is not UTF-8 text.", "model") from None


def _completion(data: bytes | str) -> Completion:
    """An answer, or a chunk of one. Raises SegueError for what is none, or is an error."""
    try:
        fields = msgspec.json.decode(data, type=dict[str, Any])
        if fields.get("error"):
            raise SegueError(_told(fields) or "the server failed.")
        told = {name: value for name, value in fields.items() if value is not None or name not in _LACKING}
        if isinstance(usage := told.get("usage"), dict):
            told["usage"] = usage | {"prompt_tokens_details": usage.get("prompt_tokens_details") or {}}
        answer = msgspec.convert(_LACKING | told, Completion)
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise SegueError(f"the server's answer is no completion: {error}.") from None
    for entries in filter(None, (choice.logprobs for choice in answer.choices)):
        if len({len(getattr(entries, name)) for name in entries.__struct_fields__}) > 1:
            raise SegueError("the server's answer is no completion: its logprobs are lists of unlike lengths.")
    return answer


def _refuse(response: httpx2.Response) -> NoReturn:
    """Raises what an error's status means, in the server's own words."""
    try:
        told = _told(response.json())
    except ValueError:
        told = None
    message = told or f"the server answered {response.status_code} {response.reason_phrase}."
    match response.status_code:
        case 401:
            raise Unauthorized(f"{message} (--api-key KEY)")
        case 429:
            raise Overloaded(message)
        case status:
            raise (InvalidRequest if status < 500 else Unavailable)(message)


def _told(body: Any) -> str | None:
    """The message in an error's envelope, in one line."""
    error = body.get("error") if isinstance(body, dict) else None
    message = error.get("message") if isinstance(error, dict) else error
    return " ".join(message.split()) if isinstance(message, str) else None

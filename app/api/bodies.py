"""Request bodies: JSON bytes to a struct of the wire, strictly.

Litestar would decode a body laxly ("16" for 16, 1 for true): here msgspec decodes the raw bytes against the schema.
"""

import asyncio
import re
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

from app.errors import InvalidRequest
from app.schemas import EXTENSIONS, CompletionRequest, StreamOptions

T = TypeVar("T")

_STRICT_FIELDS = frozenset(CompletionRequest.__struct_fields__) - EXTENSIONS


_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")

MAX_BODY = 32 << 20
"""Bytes of a request's body."""
INLINE = 1 << 14


async def off_loop(body: bytes, work: Callable[[bytes], T]) -> T:
    """`work(body)`, in a thread where the body is large: a long text takes longer than a step may wait."""
    return work(body) if len(body) < INLINE else await asyncio.to_thread(work, body)


def decoder(kind: type[T]) -> Callable[[bytes], T]:
    """A function that decodes bodies of one kind. It raises InvalidRequest: not JSON, or a wrong type or range."""
    decode = msgspec.json.Decoder(kind).decode

    def decoded(body: bytes) -> T:
        try:
            return decode(body)
        except msgspec.ValidationError as error:
            raise _explained(body, str(error)) from None
        except msgspec.DecodeError as error:
            raise InvalidRequest(f"The request's body is not valid JSON: {error}.{_hint(body)}") from None
        except RecursionError:
            raise InvalidRequest("The request's body is nested too deeply.") from None

    return decoded


_completion_request = decoder(CompletionRequest)


def completion_request(body: bytes, *, strict: bool) -> CompletionRequest:
    """A request for completions; `strict` refuses unknown fields. Raises InvalidRequest."""
    request = _completion_request(body)
    if strict:
        _refuse_unknown(body)
    return request


def _hint(body: bytes) -> str:
    """What a decoder's message does not say of two common bodies."""
    if not body.strip():
        return " It is empty."
    return " An unpaired surrogate (\\ud800 to \\udfff) is no character." if _SURROGATE.search(body) else ""


def _explained(body: bytes, reason: str) -> InvalidRequest:
    """An error that names the field and its value, from msgspec's "Expected ... - at `$.field`"."""
    problem, _, path = reason.partition(" - at `$")
    field = path.rstrip("`").removeprefix(".")
    param = field.partition(".")[0].partition("[")[0]
    if not param:
        return InvalidRequest(problem.replace("Object missing required field", "missing field"))
    fields = _fields(body)
    told = f"; {param} is {_shown(fields[param])}" if param in fields else ""
    return InvalidRequest(f"{field}: {problem}{told}.", param)


def _fields(body: bytes) -> dict[str, Any]:
    """The fields of a body of which some part is wrong already: what follows that part may be anything."""
    try:
        fields = msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError):
        return {}
    return fields if isinstance(fields, dict) else {}


def _shown(value: Any) -> str:
    shown = repr(value)
    return shown if len(shown) <= 80 else f"{shown[:80]}..."


def _refuse_unknown(body: bytes) -> None:
    fields = _fields(body)
    unknown = [key for key in fields if key not in _STRICT_FIELDS]
    options = fields.get("stream_options") or {}
    unknown += [f"stream_options.{key}" for key in options if key not in StreamOptions.__struct_fields__]
    if unknown:
        name = unknown[0][:80]
        raise InvalidRequest(f"{name} is not a field of this API (the server runs with --strict).", name)

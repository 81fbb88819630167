"""Request bodies: JSON bytes to a CompletionRequest, strictly.

Litestar would decode a body laxly ("16" for 16, 1 for true): here msgspec decodes the raw bytes against the schema.
"""

from typing import Any

import msgspec

from app.errors import InvalidRequest
from app.schemas import EXTENSIONS, CompletionRequest, StreamOptions

_decoder = msgspec.json.Decoder(CompletionRequest)
_STRICT_FIELDS = frozenset(CompletionRequest.__struct_fields__) - EXTENSIONS


def completion_request(body: bytes, *, strict: bool) -> CompletionRequest:
    """Decode a body. Raises InvalidRequest: not JSON, a wrong type or range, and if `strict` an unknown field."""
    try:
        request = _decoder.decode(body)
    except msgspec.ValidationError as error:
        raise _explained(body, str(error)) from None
    except msgspec.DecodeError as error:
        raise InvalidRequest(f"The request's body is not valid JSON: {error}.") from None
    except RecursionError:
        raise InvalidRequest("The request's body is nested too deeply.") from None
    if strict:
        _refuse_unknown(msgspec.json.decode(body))
    return request


def _explained(body: bytes, reason: str) -> InvalidRequest:
    """An error that names the field and its value, from msgspec's "Expected ... - at `$.field`"."""
    problem, _, path = reason.partition(" - at `")
    param = path.removeprefix("$.").rstrip("`").partition(".")[0].partition("[")[0]
    if not param:
        return InvalidRequest(f"The request's body is not a request: {problem}.")
    value: Any = msgspec.json.decode(body).get(param)
    return InvalidRequest(f"{path.removeprefix('$.').rstrip('`')}: {problem}; {param} is {_shown(value)}.", param)


def _shown(value: Any) -> str:
    shown = msgspec.json.encode(value).decode()
    return shown if len(shown) <= 80 else f"{shown[:80]}..."


def _refuse_unknown(body: dict[str, Any]) -> None:
    options = body.get("stream_options") or {}
    unknown = [key for key in body if key not in _STRICT_FIELDS]
    unknown += [f"stream_options.{key}" for key in options if key not in StreamOptions.__struct_fields__]
    if unknown:
        raise InvalidRequest(
            f"{unknown[0][:80]} is not a field of this API (the server runs with --strict).", unknown[0][:80]
        )

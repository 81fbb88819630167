"""Every error as the one envelope, with its status: ours, Litestar's own, and the unforeseen."""

import logging
from typing import Any

from litestar import Request, Response
from litestar.exceptions import HTTPException, InternalServerException

from app.api.bodies import MAX_BODY
from app.api.journal import GONE, record
from app.api.request_id import request_id
from app.errors import ModelNotFound, Overloaded, RequestError, SegueError, Unauthorized, Unavailable
from app.schemas import ErrorBody, ErrorResponse

logger = logging.getLogger("segue.api")

HEADERS = {401: {"www-authenticate": "Bearer"}, 429: {"retry-after": "1"}, 503: {"retry-after": "1"}}
HUNG_UP = "client disconnected prematurely"
"""What Litestar says where a body is cut off."""


def describe(error: Exception, request: str) -> tuple[int, ErrorBody]:
    """The status and the body of an error; `request` is the id that a fault of the server is logged under."""
    match error:
        case ModelNotFound():
            return 404, ErrorBody(error.message, "invalid_request_error", error.param, error.code)
        case RequestError():
            return 400, ErrorBody(error.message, "invalid_request_error", error.param, error.code)
        case Unauthorized():
            return 401, ErrorBody(error.message, "authentication_error", code=error.code)
        case Overloaded():
            return 429, ErrorBody(error.message, "rate_limit_error", code=error.code)
        case Unavailable():
            return 503, ErrorBody(error.message, "server_error", code=error.code)
        case HTTPException(status_code=404):
            return 404, ErrorBody("There is no such URL here; see /docs.", "invalid_request_error", code="unknown_url")
        case HTTPException(status_code=413):
            return 413, ErrorBody(f"The request's body is over the limit of {MAX_BODY} bytes.", "invalid_request_error")
        case HTTPException(status_code=status, detail=detail) if status < 500:
            return status, ErrorBody(detail, "invalid_request_error")
        case _:
            told = error.message if isinstance(error, SegueError) else "The server met an error it did not expect"
            return 500, ErrorBody(f"{told} (request {request}).", "server_error")


def respond(request: Request[Any, Any, Any], error: Exception) -> Response[Any]:
    """Litestar's exception handler, for all of them."""
    if isinstance(error, InternalServerException) and error.detail == HUNG_UP:
        return nobody(request, error)
    status, body = describe(error, request_id(request.scope))
    known = record(request.scope)
    known.param, known.code = body.param, body.code
    if status >= 500 and not isinstance(error, Unavailable):
        logger.error("request %s failed", request_id(request.scope), exc_info=error)
    headers = dict(error.headers or {}) if isinstance(error, HTTPException) else {}
    headers |= HEADERS.get(status, {})
    return Response(ErrorResponse(body), status_code=status, headers=headers, media_type="application/json")


def nobody(request: Request[Any, Any, Any], error: Exception) -> Response[None]:
    """The answer to a client that has gone; nobody sees it (nginx too calls this 499)."""
    return Response(None, status_code=GONE)

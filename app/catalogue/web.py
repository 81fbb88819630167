"""Files of any web server: asked for once, and gone on with where a connection breaks.

Owns HTTP: ranges, redirects, tries. The hub's files come this way too. Refuses to know the disk.
"""

import contextlib
import time
from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath

import httpx2

from app import __version__
from app.catalogue.remote import Remote
from app.errors import SettingsError, SourceError

TIMEOUT = 30.0
"""Seconds without a byte."""
PAUSES = (1.0, 2.0, 4.0)
"""Seconds before a try that follows one that brought nothing; after the last no more are made. A server that sends
something, and then breaks off, is asked again at once."""
_HEADERS = {"user-agent": f"segue/{__version__}", "accept-encoding": "identity"}
_PASSING = frozenset({408, 429, 500, 502, 503, 504})


class _Broken(Exception):
    """A try failed, and another may not."""


def find(url: str) -> list[Remote]:
    """The file at a URL. Raises StartError."""
    try:
        name = PurePosixPath(httpx2.URL(url).path).name
        if not name.endswith(".gguf"):
            raise SettingsError(f"{url}: the address of a file must end with .gguf.")
        with _client() as client, client.stream("GET", url) as response:
            _check(url, response)
            size, version = _length(response), _version(response)
    except (httpx2.HTTPError, httpx2.InvalidURL, _Broken) as error:
        raise SourceError(f"{url}: {told(error)}.") from None
    return [
        Remote(
            file=name,
            size=size,
            sha256=None,
            version=f"{url} {size} {version}",
            resumes=None not in (size, version),
            read=lambda start, scratch: read(url, start, size, version),
        )
    ]


def read(
    url: str, start: int, size: int | None, version: str | None = None, headers: Mapping[str, str] | None = None
) -> Iterator[bytes]:
    """The bytes of a file from `start` on, over as many connections as it takes.

    version: the ETag or date that the file had when it was found; where it has another by now, what was read of it is
    of no use. headers: go to the URL's own host only. Raises SourceError.
    """
    n_read, pauses = start, iter(PAUSES)
    with _client() as client:
        while n_read != size:
            n_before = n_read
            try:
                for block in _once(client, url, n_read, version, headers):
                    n_read += len(block)
                    yield block
                return
            except (httpx2.TransportError, _Broken) as error:
                if n_read > n_before:
                    pauses = iter(PAUSES)
                else:
                    _pause(pauses, url, error)
            except (httpx2.HTTPError, httpx2.InvalidURL) as error:
                raise SourceError(f"{url}: {told(error)}.") from None


def _pause(pauses: Iterator[float], url: str, error: Exception) -> None:
    """Raises SourceError after the last."""
    pause = next(pauses, None)
    if pause is None:
        raise SourceError(f"{url}: {told(error)}. Try again later: it goes on from there.") from None
    time.sleep(pause)


def _once(
    client: httpx2.Client, url: str, start: int, version: str | None, headers: Mapping[str, str] | None
) -> Iterator[bytes]:
    """One connection's bytes. A server that knows no ranges sends all; what is there already is passed over."""
    wanted = {"range": f"bytes={start}-"} if start else {}
    with client.stream("GET", url, headers={**(headers or {}), **wanted}) as response:
        _check(url, response)
        if version not in (None, _version(response)):
            raise SourceError(f"{url}: the file has changed while it was downloaded. Get it again.")
        is_rest = response.headers.get("content-range", "").startswith(f"bytes {start}-")
        n_passed = 0 if is_rest else start
        for block in response.iter_raw():
            if n_passed < len(block):
                yield block[n_passed:]
            n_passed = max(n_passed - len(block), 0)


def _version(response: httpx2.Response) -> str | None:
    return response.headers.get("etag") or response.headers.get("last-modified")


def _client() -> httpx2.Client:
    """Proxies and certificates are as the environment has them."""
    return httpx2.Client(follow_redirects=True, timeout=TIMEOUT, headers=_HEADERS)


def _check(url: str, response: httpx2.Response) -> None:
    """Raises SourceError for an answer that is no file; _Broken where a later one may be."""
    status = response.status_code
    if status in _PASSING:
        raise _Broken(f"the server answers {status} {response.reason_phrase}")
    if status in (httpx2.codes.UNAUTHORIZED, httpx2.codes.FORBIDDEN):
        raise SourceError(f"{url}: the server wants to know who asks ({status} {response.reason_phrase}).")
    if not response.is_success:
        raise SourceError(f"{url}: the server answers {status} {response.reason_phrase}.")


def _length(response: httpx2.Response) -> int | None:
    with contextlib.suppress(KeyError, ValueError):
        return int(response.headers["content-length"])
    return None


def told(error: Exception) -> str:
    """What went wrong on the way, for the middle of a sentence."""
    return str(error).rstrip(".") or type(error).__name__

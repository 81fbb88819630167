"""Whatever is sent, the answer is one that the API's description allows, and the next request is served.

Bodies are drawn from the description itself, then spoilt. Short here; `scripts/fuzz` goes on for minutes.
"""

import os
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests import nonsense
from tests.conftest import KEYS, Served
from tests.schema import Schemas
from tests.servers import envelope, payloads_of, strict_json

N_EXAMPLES = int(os.environ.get("FUZZ_EXAMPLES", "0"))
"""Set by scripts/fuzz, which also gives the seed."""
FUZZ = settings(
    max_examples=N_EXAMPLES or 12, derandomize=not N_EXAMPLES, database=None, deadline=None,
    suppress_health_check=list(HealthCheck),
)  # fmt: skip
DOORS = {
    "/v1/completions": "CompletionRequest",
    "/v1/fim/completions": "FimRequest",
    "/infill": "InfillRequest",
    "/tokenize": "TokenizeRequest",
    "/detokenize": "DetokenizeRequest",
}


@dataclass(frozen=True, eq=False)
class Target:
    """A server, by its own description."""

    served: Served
    schemas: Schemas
    document: Any

    def bodies(self, path: str) -> st.SearchStrategy[Any]:
        """Bodies as the description has them."""
        found = self.schemas.values({"$ref": "/" + DOORS[path]})
        fields = self.fields(path)
        return nonsense.named(found, self.served.toy.name) if "model" in fields else found

    def fields(self, path: str) -> list[str]:
        return list(self.document["components"]["schemas"][DOORS[path]]["properties"])

    def post(self, path: str, body: bytes) -> None:
        """Send it, and check what comes back."""
        response = self.served.api.http.post(path, content=body)
        answers = self.document["paths"][path]["post"]["responses"]
        assert str(response.status_code) in answers, response.text[:500]
        assert response.status_code < 500, response.text[:500]
        if response.status_code >= 400:
            envelope(response)
        elif response.headers["content-type"].startswith("text/event-stream"):
            self._check_stream(path, response)
        else:
            schema = answers["200"]["content"]["application/json"]["schema"]
            assert self.schemas.fits(strict_json(response.content), schema), response.text[:500]

    def _check_stream(self, path: str, response: httpx.Response) -> None:
        schema = self.document["paths"][path]["post"]["responses"]["200"]["content"]["application/json"]["schema"]
        payloads = payloads_of(response.content)
        if path != "/infill":
            assert payloads.pop() == "[DONE]"
        assert payloads
        for payload in payloads:
            assert self.schemas.fits(strict_json(payload), schema), payload

    def check_alive(self) -> None:
        """The engine generates, and nothing of what was sent before is left in it."""
        api = self.served.api
        assert api.choice(prompt="a", model=self.served.toy.name, max_tokens=2)
        counts = api.http.get("/metrics").text
        assert "\nsegue_sequences_running 0.0\n" in counts
        assert "\nsegue_requests_waiting 0.0\n" in counts
        assert "\nsegue_faults_total 0.0\n" in counts
        assert "Traceback" not in self.served.server.said


@pytest.fixture(scope="module", params=["bpe", "strict", "guarded", "templated"])
def target(request: pytest.FixtureRequest) -> Target:
    """Servers with small contexts: with and without gap tokens, strict, behind a key, with a template."""
    served: Served = request.getfixturevalue(request.param)
    document = served.api.http.get("/schema/openapi.json").json()
    return Target(served, Schemas(document), document)


def send_all(target: Target, path: str, bodies: st.SearchStrategy[bytes]) -> None:
    """Post examples of such bodies; the server must still work then."""

    @FUZZ
    @given(bodies)
    def sent(body: bytes) -> None:
        target.post(path, body)

    sent()
    target.check_alive()


@pytest.mark.parametrize("path", DOORS)
def test_what_the_description_allows_is_answered_as_it_says(target: Target, path: str) -> None:
    send_all(target, path, nonsense.encoded(target.bodies(path)))


@pytest.mark.parametrize("path", DOORS)
def test_fields_that_are_wrong_are_refused_or_harmless(target: Target, path: str) -> None:
    send_all(target, path, nonsense.encoded(nonsense.spoilt(target.bodies(path), target.fields(path))))


@pytest.mark.parametrize("path", DOORS)
def test_bytes_that_are_wrong_are_refused_or_harmless(target: Target, path: str) -> None:
    send_all(target, path, nonsense.cut(nonsense.encoded(target.bodies(path))))


METHODS = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "PURGE", "PROPFIND", "TRACE"]


def test_any_method_on_any_path_has_an_answer(target: Target) -> None:
    paths = st.one_of(
        st.sampled_from([*target.document["paths"], "/docs", "/v1/models/toy-bpe"]),
        st.binary(max_size=20).map(lambda path: "/" + quote(path, safe="/%")),
    )
    # What the client itself would refuse to send is in test_wire.py.
    values = st.binary(max_size=20).map(bytes.strip).filter(lambda value: not set(value) & set(b"\r\n\x00\v\f"))
    header = st.tuples(
        st.sampled_from(["authorization", "content-type", "accept", "origin", "x-request-id", "accept-encoding"]),
        st.one_of(values, st.just(f"Bearer {KEYS[1]}".encode())),
    )  # fmt: skip

    @FUZZ
    @given(st.sampled_from(METHODS), paths, st.lists(header, max_size=2))
    def sent(method: str, path: str, headers: list[tuple[str, bytes]]) -> None:
        response = target.served.api.http.request(method, path, headers=[(n.encode(), v) for n, v in headers])
        assert response.status_code < 500, response.text
        if response.status_code >= 400 and method != "HEAD":
            envelope(response)

    sent()
    target.check_alive()

"""Pages of this machine may call, others if they are named; what a browser asks beforehand needs no key."""

from collections.abc import Mapping

import httpx
import pytest

from tests.conftest import NAMED_ORIGIN, Served
from tests.servers import Api, envelope, events

ALLOW = "access-control-allow-origin"
LOCAL = [
    "http://localhost", "http://localhost:3000", "http://127.0.0.1", "http://127.0.0.1:8080", "https://localhost:5173",
    "http://[::1]:4000",
]  # fmt: skip
FOREIGN = [
    "https://other.example", "http://localhost.other.example", "http://localhost:3000.other.example",
    "http://127.0.0.1.other.example", "http://127.0.0.1:80@other.example", "http://notlocalhost", "http://localhost:",
    "http://127x0y0z1", "http://192.168.0.7:3000", "file://", "https://app.example.other", "http://app.example",
    "https://appxexample", "https://x.app.example", "https://app.example:8443", "",
]  # fmt: skip
ASKED = "authorization,content-type,x-stainless-os,openai-beta"


def preflight(api: Api, origin: str, path: str = "/v1/completions", method: str = "POST") -> httpx.Response:
    headers = {
        "origin": origin,
        "access-control-request-method": method,
        "access-control-request-headers": ASKED,
    }
    return httpx.options(api.url + path, headers=headers)


def check_allowed(response: httpx.Response, origin: str) -> None:
    """A preflight that lets a page of this origin send anything."""
    assert response.status_code in {200, 204}, response.text
    assert response.headers.get_list(ALLOW) == [origin]
    allowed = {name.strip().lower() for name in response.headers["access-control-allow-headers"].split(",")}
    assert allowed >= set(ASKED.split(","))
    methods = {name.strip() for name in response.headers["access-control-allow-methods"].split(",")}
    assert methods >= {"GET", "POST"}


def answers(served: Served, headers: Mapping[str, str]) -> list[httpx.Response]:
    """Answers of every kind to a page: good, streamed and refused."""
    http, url = served.api.http, "/v1/completions"
    stranger = {"authorization": "Bearer nobody"}
    return [
        http.get("/health", headers=headers),
        http.get("/v1/models", headers=headers),
        http.post(url, headers=headers, json={"prompt": "a", "max_tokens": 2}),
        http.post(url, headers=headers, json={"prompt": "a", "max_tokens": 2, "stream": True}),
        http.post(url, headers=headers, content=b"{"),
        http.post(url, headers=headers, json={"prompt": []}),
        http.post(url, headers=headers, json={"prompt": "a", "model": "nope"}),
        http.get("/nowhere", headers=headers),
        http.get(url, headers=headers),
        http.post("/tokenize", headers=headers, json={"prompt": "a"}),
        http.post(url, headers={**headers, **stranger}, json={"prompt": "a", "max_tokens": 2}),
    ]


STATUSES = [200, 200, 200, 200, 400, 400, 404, 404, 405, 200]


@pytest.mark.parametrize("origin", LOCAL)
def test_pages_of_this_machine_may_call(bpe: Served, guarded: Served, origin: str) -> None:
    for served in (bpe, guarded):
        got = answers(served, {"origin": origin})
        assert [response.status_code for response in got] == [*STATUSES, 401 if served is guarded else 200]
        for response in got:
            assert response.headers.get_list(ALLOW) == [origin]
            assert "origin" in response.headers["vary"].lower()
            assert "x-request-id" in response.headers["access-control-expose-headers"].lower()
        assert len(events(got[3].content)) > 1
        check_allowed(preflight(served.api, origin), origin)


@pytest.mark.parametrize("origin", [*FOREIGN, "null", NAMED_ORIGIN])
def test_pages_from_elsewhere_may_not(bpe: Served, origin: str) -> None:
    for response in (*answers(bpe, {"origin": origin}), preflight(bpe.api, origin)):
        assert ALLOW not in response.headers


@pytest.mark.parametrize("origin", [NAMED_ORIGIN, "null"])
def test_pages_that_are_named_may(guarded: Served, origin: str) -> None:
    got = answers(guarded, {"origin": origin})
    assert [response.status_code for response in got] == [*STATUSES, 401]
    for response in got:
        assert response.headers.get_list(ALLOW) == [origin]
    check_allowed(preflight(guarded.api, origin), origin)


@pytest.mark.parametrize("origin", FOREIGN)
def test_pages_beside_the_named_ones_may_not(guarded: Served, origin: str) -> None:
    for response in (*answers(guarded, {"origin": origin}), preflight(guarded.api, origin)):
        assert ALLOW not in response.headers


@pytest.mark.parametrize("origin", ["https://other.example", NAMED_ORIGIN, "null", LOCAL[1]])
def test_a_star_lets_every_page_call(templated: Served, origin: str) -> None:
    for response in answers(templated, {"origin": origin}):
        assert response.headers.get_list(ALLOW) == ["*"]
    check_allowed(preflight(templated.api, origin), "*")


@pytest.mark.parametrize(
    ("path", "method"),
    [("/v1/models", "GET"), ("/tokenize", "POST"), ("/infill", "POST"), ("/v1/fim/completions", "POST"),
     ("/health", "GET"), ("/v1/completions/", "POST")],
)  # fmt: skip
def test_a_preflight_of_any_route_needs_no_key(guarded: Served, path: str, method: str) -> None:
    check_allowed(preflight(guarded.api, NAMED_ORIGIN, path, method), NAMED_ORIGIN)


def test_a_preflight_may_ask_for_nothing_special(guarded: Served) -> None:
    headers = {"origin": NAMED_ORIGIN, "access-control-request-method": "POST"}
    response = httpx.options(f"{guarded.api.url}/v1/completions", headers=headers)
    assert response.status_code in {200, 204}
    assert response.headers[ALLOW] == NAMED_ORIGIN


def test_a_preflight_that_is_refused_has_the_envelope(bpe: Served) -> None:
    response = preflight(bpe.api, "https://other.example")
    if response.status_code >= 400:
        assert envelope(response)["type"] == "invalid_request_error"


def test_answers_to_others_than_pages_say_nothing_of_origins(bpe: Served) -> None:
    for response in answers(bpe, {}):
        assert ALLOW not in response.headers

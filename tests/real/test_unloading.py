"""An unloaded model's memory is the system's again: measured on a real one."""

from collections.abc import Callable
from pathlib import Path
from time import monotonic

import pytest

from tests.api.test_seeing import numbers
from tests.servers import Api, running

pytestmark = pytest.mark.real

MIB = 1 << 20
PATIENCE = 60.0


def until(is_so: Callable[[], bool]) -> None:
    """Each look is a request: the server gets on between them."""
    deadline = monotonic() + PATIENCE
    while not is_so():
        assert monotonic() < deadline


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the size of a process is read there")
def test_memory_is_given_back_each_time_that_a_model_leaves(real_model: Path, tmp_path: Path) -> None:
    """Of some 700 MiB that it takes, less than 60 stay, however often it comes and goes."""
    config = tmp_path / "segue.toml"
    top = 'ctx-size = 2048\nload = "first-use"\nidle-unload-minutes = 0.001\n'
    config.write_text(f"{top}[[models]]\nmodel = '{real_model}'\n")
    with running(tmp_path / "log", "--config", str(config)) as server:
        api = Api(server.url)

        def resident() -> float:
            return numbers(api.http.get("/metrics").text)["process_resident_memory_bytes"] / MIB

        start = resident()
        for _ in range(3):
            with api.http.stream("POST", "/v1/completions", json={"prompt": "a", "stream": True}) as response:
                assert next(response.iter_lines())
                assert resident() - start > 400
            until(lambda: api.http.get("/v1/models").json()["data"][0]["state"] == "unloaded")
            until(lambda: resident() - start < 60)
        api.http.close()

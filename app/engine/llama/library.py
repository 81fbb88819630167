"""The library: how it is loaded, what it says, what it was built to use, and in which threads it computes."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import llama_cpp

from app.engine.ggml import Ggml
from app.engine.hearing import Hearing

ggml = Ggml(llama_cpp.llama_cpp._lib)

hearing = Hearing()


@llama_cpp.llama_log_callback  # type: ignore[untyped-decorator]  # llama_cpp has no types
def hear(level: int, text: bytes, _: object) -> None:
    hearing.hear(level, text)


def system_info() -> str:
    """What llama.cpp was built to use, in its own words; `app.engine.build` reads them."""
    ggml.load_kernels()
    told: bytes = llama_cpp.llama_print_system_info()
    return told.decode("utf-8", "replace")


def apart(work: Callable[..., Any], *arguments: Any) -> Any:
    """Do something in a thread that ends with it.

    libgomp keeps its helpers of every thread that has ever computed, and counts them: with more of them than
    processors it lets those that do compute sleep at each barrier, which costs a fifth of the speed.
    """
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(work, *arguments).result()

"""Bodies on their way to a request: a large one holds up nobody else's."""

import threading

from app.api.bodies import INLINE, off_loop


async def test_a_large_body_is_read_beside_the_loop_and_a_small_one_on_it() -> None:
    def thread(_: bytes) -> int:
        return threading.get_ident()

    assert await off_loop(bytes(INLINE - 1), thread) == threading.get_ident()
    assert await off_loop(bytes(INLINE), thread) != threading.get_ident()

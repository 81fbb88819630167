"""What models may take of this machine's memory, and giving back what they took.

What a model has taken, `placement` knows.
"""

import ctypes
import gc
from pathlib import Path

from app.engine import machine
from app.engine.ggml import Ggml
from app.engine.offload import MARGIN

SHARE = 0.8
"""Of the machine's memory, what models may take."""
ENDLESS = 1 << 62
"""What is taken for the memory of a machine that does not tell."""


def budget(ggml: Ggml, root: Path = machine.ROOT) -> int:
    """Bytes that models may take where nothing else is said: most of the memory, and all but a margin of each GPU's."""
    gpus = sum(max(device.n_free - MARGIN, 0) for device in ggml.devices() if device.is_gpu)
    main = machine.memory(root)
    return int(SHARE * (main.n_most if main else ENDLESS)) + gpus


def give_back() -> None:
    """Let the system have what has been freed: glibc keeps it for later, unless it is told not to."""
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim:
        trim(0)

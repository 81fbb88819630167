"""llama.cpp, through llama_cpp's raw functions: the only part that imports llama_cpp.

`library` is the library itself, what it says and how it was built; `vocabulary`, `model` and `backend` are what is made
with it. Refuses to know who asks: it reads chunks into slots and hands back logits.
"""

import os

# libgomp reads this when it is loaded. By default its threads spin for each other so long that one busy neighbour on
# the machine costs four fifths of the speed; with little spinning an idle one loses a twentieth (docs/measurements.md).
os.environ.setdefault("GOMP_SPINCOUNT", "1000")

from app.engine.llama.backend import MAX_SLOTS, LlamaBackend
from app.engine.llama.library import ggml, hearing, system_info
from app.engine.llama.model import LlamaModel, Progress
from app.engine.llama.vocabulary import LlamaVocabulary

__all__ = [
    "MAX_SLOTS",
    "LlamaBackend",
    "LlamaModel",
    "LlamaVocabulary",
    "Progress",
    "ggml",
    "hearing",
    "system_info",
]

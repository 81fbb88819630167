"""A context over a model, with its KV cache: batches in, logits out.

Arrays of a batch are filled through numpy, since a call through ctypes costs a microsecond and a batch has hundreds of
numbers.
"""

from collections.abc import Sequence as Ordered
from functools import cached_property
from typing import Any

import llama_cpp
import numpy as np
from numpy.typing import NDArray

from app.engine import placement
from app.engine.backend import Chunk, Limits
from app.engine.llama.library import apart, ggml, hearing
from app.engine.llama.model import LlamaModel
from app.engine.offload import Offload
from app.engine.sizes import Sizes
from app.errors import GenerationFailed, ModelError, NoRoom

MAX_SLOTS = 256
"""LLAMA_MAX_SEQ, which the library does not export."""

_CONTEXT_REMEDIES = {
    "quantized V cache": "choose f16 for --cache-type-v, or leave --flash-attn on",
    "cache type": "choose another --cache-type-k and --cache-type-v",
}

_FLASH = {
    "auto": llama_cpp.LLAMA_FLASH_ATTN_TYPE_AUTO,
    "on": llama_cpp.LLAMA_FLASH_ATTN_TYPE_ENABLED,
    "off": llama_cpp.LLAMA_FLASH_ATTN_TYPE_DISABLED,
}


def _context_params(offload: Offload) -> Any:
    params = llama_cpp.llama_context_default_params()
    params.flash_attn_type = _FLASH[offload.flash_attn]
    params.type_k, params.type_v = ggml.type_of(offload.cache_type_k), ggml.type_of(offload.cache_type_v)
    params.offload_kqv = offload.kv_offload
    return params


class LlamaBackend:
    """A context over a model; fulfils `Backend`. One thread at a time.

    The KV cache is unified: slots that fork share cells, at no cost. Sliding-window layers keep all cells, so that
    any prefix can be forked from.
    """

    def __init__(self, model: LlamaModel, sizes: Sizes) -> None:
        """Raises ModelError where the context does not fit into memory."""
        params = _context_params(model.offload)
        params.n_ctx = sizes.n_cells
        params.n_batch = params.n_ubatch = sizes.n_batch
        params.n_seq_max = sizes.n_slots
        params.n_outputs_max = params.n_outputs_max_per_seq = sizes.n_rows
        params.n_threads = params.n_threads_batch = sizes.n_threads
        params.kv_unified = params.swa_full = params.no_perf = True
        self._model = model
        with hearing.lines() as self._log:
            self._context = apart(llama_cpp.llama_init_from_model, model.handle, params)
        if not self._context:
            remedy = hearing.remedy(
                _CONTEXT_REMEDIES, "try a smaller --cache-size or --ctx-size, or fewer --gpu-layers"
            )
            raise ModelError(f"{model.path}: no context of {sizes.n_cells} cells: {hearing.cause}; {remedy}.")
        self._memory = llama_cpp.llama_get_memory(self._context)
        self._batch = _Batch(sizes.n_batch)
        self.limits = Limits(
            n_vocab=model.vocabulary.n_tokens,
            n_context=sizes.n_context,
            n_cells=sizes.n_cells,
            n_slots=sizes.n_slots,
            n_batch=sizes.n_batch,
            n_rows=sizes.n_rows,
            can_cut=not (
                llama_cpp.llama_model_is_recurrent(model.handle) or llama_cpp.llama_model_is_hybrid(model.handle)
            ),
        )

    @cached_property
    def placement(self) -> placement.Placement:
        """Where the model and its context lie."""
        told = {device.name: device.description for device in ggml.devices()}
        return placement.read(self._model.log + self._log, lambda name: told.get(name, name))

    @property
    def n_cache(self) -> int:
        """Bytes of the whole KV cache, those that a hollow model would have too."""
        return placement.cache_bytes(self._log)

    def piece(self, token: int) -> bytes:
        """The text bytes that a token prints; b"" for special tokens."""
        return self._model.vocabulary.piece(token)

    def decode(self, chunks: Ordered[Chunk]) -> NDArray[np.float32]:
        """Read the chunks in one pass; see `Backend.decode`."""
        n_rows = self._batch.fill(chunks)
        # More rows than the context was made for would abort the process.
        assert n_rows <= self.limits.n_rows, f"{n_rows} rows in a context for {self.limits.n_rows}"
        status = llama_cpp.llama_decode(self._context, self._batch.struct)
        if status == 1:
            raise NoRoom("llama_decode found no free cells")
        if status:
            raise GenerationFailed(f"llama_decode answered {status}")
        if not n_rows:
            return np.empty((0, self.limits.n_vocab), np.float32)
        return np.ctypeslib.as_array(llama_cpp.llama_get_logits(self._context), (n_rows, self.limits.n_vocab))

    def fork(self, source: int, target: int, n_tokens: int) -> None:
        """Let the empty slot `target` share the first `n_tokens` cells of `source`."""
        llama_cpp.llama_memory_seq_cp(self._memory, source, target, 0, n_tokens)

    def cut(self, slot: int, n_tokens: int) -> None:
        """Forget all of a slot but its first `n_tokens` tokens."""
        llama_cpp.llama_memory_seq_rm(self._memory, slot, n_tokens, -1)

    def drop(self, slot: int) -> None:
        """Empty a slot."""
        llama_cpp.llama_memory_seq_rm(self._memory, slot, -1, -1)

    def close(self) -> None:
        """Free the context. The model lives as long as anything that uses it."""
        context, self._context = self._context, None
        if context:
            llama_cpp.llama_free(context)


class _Batch:
    """A llama_batch whose arrays are numpy's: one sequence id a token."""

    def __init__(self, n_batch: int) -> None:
        self._tokens = np.zeros(n_batch, np.int32)
        self._positions = np.zeros(n_batch, np.int32)
        self._slots = np.zeros(n_batch, np.int32)
        self._wants = np.zeros(n_batch, np.int8)
        self._n_slots = np.ones(n_batch, np.int32)
        self._slot_pointers = self._slots.ctypes.data + self._slots.itemsize * np.arange(n_batch, dtype=np.uintp)
        self.struct = llama_cpp.llama_batch()
        arrays: dict[str, NDArray[Any]] = {
            "token": self._tokens,
            "pos": self._positions,
            "n_seq_id": self._n_slots,
            "seq_id": self._slot_pointers,
            "logits": self._wants,
        }
        kinds: dict[str, Any] = {name: kind for name, kind, *_ in llama_cpp.llama_batch._fields_}
        for name, array in arrays.items():
            setattr(self.struct, name, array.ctypes.data_as(kinds[name]))

    def fill(self, chunks: Ordered[Chunk]) -> int:
        """Lay the chunks one after another; returns how many rows they want."""
        tokens: list[int] = []
        positions: list[int] = []
        slots: list[int] = []
        wants: list[int] = []
        for slot, start, read, n_wanted in chunks:
            n = len(read)
            tokens += read
            positions += range(start, start + n)
            slots += [slot] * n
            wants += [0] * (n - n_wanted) + [1] * n_wanted
        end = self.struct.n_tokens = len(tokens)
        self._tokens[:end] = tokens
        self._positions[:end] = positions
        self._slots[:end] = slots
        self._wants[:end] = wants
        return sum(wants)

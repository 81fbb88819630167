"""llama.cpp, through llama_cpp's raw functions. The only module that imports llama_cpp.

Owns the model, its vocabulary, and the context with its KV cache. Refuses to know who asks: it reads chunks into
slots and hands back logits. Arrays of a batch are filled through numpy, since a call through ctypes costs a
microsecond and a batch has hundreds of numbers.
"""

import ctypes
import hashlib
import os
import weakref
from collections.abc import Callable
from collections.abc import Sequence as Ordered
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from app.engine import placement
from app.engine.backend import Chunk, FimTokens, Limits
from app.engine.ggml import Ggml
from app.engine.hearing import Hearing
from app.engine.offload import Offload
from app.engine.sizes import Sizes
from app.errors import GenerationFailed, ModelError, NoRoom

# libgomp reads this when it is loaded. By default its threads spin for each other so long that one busy neighbour on
# the machine costs four fifths of the speed; with little spinning an idle one loses a twentieth (docs/measurements.md).
os.environ.setdefault("GOMP_SPINCOUNT", "1000")

import llama_cpp

ggml = Ggml(llama_cpp.llama_cpp._lib)

MAX_SLOTS = 256
"""LLAMA_MAX_SEQ, which the library does not export."""

_MARK = "\ue000"

Progress = Callable[[float], bool | None]
"""Called with 0..1 while a model loads; False ends that."""

hearing = Hearing()


@llama_cpp.llama_log_callback  # type: ignore[untyped-decorator]  # llama_cpp has no types
def _hear(level: int, text: bytes, _: object) -> None:
    hearing.hear(level, text)


_UPGRADE = f"it is too new for llama-cpp-python {llama_cpp.__version__}: upgrade that, or choose another model"
_REMEDIES = {
    "unknown model architecture": _UPGRADE,
    "only supports up to version": _UPGRADE,
    "alloc": "memory is short: fewer --gpu-layers, --no-repack or a model of fewer bits need less",
    "main_gpu": "--main-gpu counts the GPUs from 0",
}
_CONTEXT_REMEDIES = {
    "quantized V cache": "choose f16 for --cache-type-v, or leave --flash-attn on",
    "cache type": "choose another --cache-type-k and --cache-type-v",
}


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """What the file says of itself. n_bytes: size of the weights; quantisation: as llama.cpp names it."""

    architecture: str
    n_vocab: int
    n_params: int
    n_bytes: int
    n_context_trained: int
    quantisation: str


class _Weights:
    """What llama.cpp has loaded. It goes with the last of those who hold this."""

    def __init__(self, handle: Any) -> None:
        self.handle = handle
        # At exit the system takes it.
        weakref.finalize(self, llama_cpp.llama_model_free, handle).atexit = False


class LlamaVocabulary:
    """The tokens of a model; fulfils `Vocabulary`. llama.cpp's tokenizer calls may run in any thread.

    A stream may still look up its last tokens when its engine is closed: the vocabulary holds what it reads from.
    """

    def __init__(self, model: "LlamaModel") -> None:
        self._weights = model.weights
        self._vocab = vocab = llama_cpp.llama_model_get_vocab(model.handle)
        self.n_tokens: int = llama_cpp.llama_vocab_n_tokens(vocab)
        self.adds_bos: bool = llama_cpp.llama_vocab_get_add_bos(vocab)
        # Where a file names no BOS, llama.cpp makes one up: it counts only if the model uses it or names it.
        has_bos = self.adds_bos or model.metadata("tokenizer.ggml.bos_token_id") is not None
        self.bos = _token_or_none(llama_cpp.llama_vocab_bos(vocab)) if has_bos else None
        self.eos = _token_or_none(llama_cpp.llama_vocab_eos(vocab))
        self.pad = _token_or_none(llama_cpp.llama_vocab_pad(vocab))
        template = llama_cpp.llama_model_chat_template(model.handle, None)
        self.chat_template: str | None = template.decode("utf-8", "replace") if template else None
        is_sentencepiece = llama_cpp.llama_vocab_type(vocab) == llama_cpp.LLAMA_VOCAB_TYPE_SPM
        self.adds_space = is_sentencepiece and model.metadata("tokenizer.ggml.add_space_prefix") != "false"
        self.end_tokens = frozenset(t for t in range(self.n_tokens) if llama_cpp.llama_vocab_is_eog(vocab, t))
        self.fim = self._fim()
        self._names: dict[int, bytes] = {}
        self._specials: dict[int, bool] = {}
        self._buffer_size = 64

    @cached_property
    def longest(self) -> int:
        """As the file writes them, which is never shorter than what they print."""
        return max(len(llama_cpp.llama_vocab_get_text(self._vocab, token)) for token in range(self.n_tokens))

    def _fim(self) -> FimTokens | None:
        """Both ends of the frame must be declared: a token of some other meaning would make nonsense of it."""
        found = {
            name: _token_or_none(getattr(llama_cpp, f"llama_vocab_fim_{name}")(self._vocab))
            for name in ("pre", "suf", "mid", "pad", "rep", "sep")
        }
        if found["pre"] is None or found["suf"] is None:
            return None
        every = frozenset(token for token in found.values() if token is not None)
        return FimTokens(found["pre"], found["suf"], found["mid"], every)

    def tokenize(self, text: str, parse_special: bool = True, add_space: bool = True) -> list[int]:
        """The tokens of a text. Raises UnicodeEncodeError where it holds a lone surrogate."""
        if not add_space and self.adds_space:
            return self._tokenize_bare(text, parse_special)
        data = text.encode()
        size = len(data) + 2
        tokens = np.empty(size, np.int32)
        at = tokens.ctypes.data_as(llama_cpp.llama_token_p)
        n_tokens = llama_cpp.llama_tokenize(self._vocab, data, len(data), at, size, False, parse_special)
        if n_tokens < 0:
            raise GenerationFailed(f"the tokenizer wants {-n_tokens} tokens for {len(data)} bytes")
        result: list[int] = tokens[:n_tokens].tolist()
        return result

    def _tokenize_bare(self, text: str, parse_special: bool) -> list[int]:
        """Without the space that the tokenizer would add, which it cannot be told: behind a mark that is cut off.

        The mark is of no word and merges with nothing, so that what follows is tokenised as inside a text. Special
        tokens are found first, since a space is added after each of them as well.
        """
        tokens: list[int] = []
        for token in filter(self.is_special, self.tokenize(text)) if parse_special else ():
            before, _, text = text.partition(self.name(token).decode())
            tokens += [*self._tokenize_bare(before, parse_special=False), token]
        n_mark = len(self.tokenize(_MARK))
        return tokens + (self.tokenize(_MARK + text, parse_special=False)[n_mark:] if text else [])

    def is_special(self, token: int) -> bool:
        """Whether a token stands for no text: control tokens, and the unknown one."""
        found = self._specials.get(token)
        if found is None:
            attributes = llama_cpp.llama_vocab_get_attr(self._vocab, token)
            special = llama_cpp.LLAMA_TOKEN_ATTR_CONTROL | llama_cpp.LLAMA_TOKEN_ATTR_UNKNOWN
            found = self._specials[token] = bool(attributes & special)
        return found

    def piece(self, token: int) -> bytes:
        """The text bytes that a token prints; b"" for special tokens."""
        return b"" if self.is_special(token) else self.name(token)

    def name(self, token: int) -> bytes:
        """As `piece`; a special token's name."""
        found = self._names.get(token)
        if found is None:
            found = self._names[token] = self._read_name(token)
        return found

    def _read_name(self, token: int) -> bytes:
        buffer = ctypes.create_string_buffer(self._buffer_size)
        size = llama_cpp.llama_token_to_piece(self._vocab, token, buffer, len(buffer), 0, True)
        if size < 0:
            self._buffer_size = -size
            return self._read_name(token)
        return buffer.raw[:size]


def system_info() -> str:
    """What llama.cpp was built to use, in its own words; `app.engine.build` reads them."""
    ggml.load_kernels()
    told: bytes = llama_cpp.llama_print_system_info()
    return told.decode("utf-8", "replace")


def _apart(work: Callable[..., Any], *arguments: Any) -> Any:
    """Do something in a thread that ends with it.

    libgomp keeps its helpers of every thread that has ever computed, and counts them: with more of them than
    processors it lets those that do compute sleep at each barrier, which costs a fifth of the speed.
    """
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(work, *arguments).result()


def _token_or_none(token: int) -> int | None:
    return token if token >= 0 else None


def _model_params(offload: Offload) -> Any:
    params = llama_cpp.llama_model_default_params()
    params.n_gpu_layers = offload.gpu_layers if isinstance(offload.gpu_layers, int) else -1
    if offload.main_gpu is not None:
        params.split_mode, params.main_gpu = llama_cpp.LLAMA_SPLIT_MODE_NONE, offload.main_gpu
    if offload.tensor_split:
        params.tensor_split = (ctypes.c_float * llama_cpp.llama_max_devices())(*offload.tensor_split)
    params.load_mode = _load_mode(offload)
    params.use_extra_bufts = offload.repack
    return params


def _load_mode(offload: Offload) -> int:
    if offload.mlock:
        name = "MLOCK" if offload.mmap is False else "MMAP_MLOCK"
    else:
        name = {None: "AUTO", True: "MMAP", False: "NONE"}[offload.mmap]
    mode: int = getattr(llama_cpp, f"LLAMA_LOAD_MODE_{name}")
    return mode


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


class LlamaModel:
    """A GGUF file in memory: weights and vocabulary."""

    def __init__(
        self,
        path: Path,
        offload: Offload,
        progress: Progress | None = None,
        *,
        is_hollow: bool = False,
    ) -> None:
        """Load a file. gpu_layers: `auto` that `app.engine.fit` has not settled is all.

        is_hollow: without the weights, to measure what it would take. Raises ModelError where llama.cpp cannot load.
        """
        self.path = path
        self.offload = offload
        hearing.forget()
        llama_cpp.llama_log_set(_hear, None)
        ggml.load_kernels()
        llama_cpp.llama_backend_init()
        params = _model_params(offload)
        if is_hollow:
            params.no_alloc, params.load_mode = True, llama_cpp.LLAMA_LOAD_MODE_NONE
        report = llama_cpp.llama_progress_callback(lambda done, _: not progress or progress(done) is not False)
        params.progress_callback = report
        with hearing.lines() as self.log:
            handle = _apart(llama_cpp.llama_model_load_from_file, os.fsencode(path), params)
        if not handle:
            remedy = hearing.remedy(_REMEDIES, "it may be cut off: download it again")
            raise ModelError(f"{path}: llama.cpp cannot load this file: {hearing.cause}; {remedy}.")
        self.weights = _Weights(handle)

    @property
    def handle(self) -> Any:
        return self.weights.handle

    @cached_property
    def vocabulary(self) -> LlamaVocabulary:
        return LlamaVocabulary(self)

    def metadata(self, key: str) -> str | None:
        """A value of the GGUF's metadata, as text."""
        buffer = ctypes.create_string_buffer(1024)
        size = llama_cpp.llama_model_meta_val_str(self.handle, key.encode(), buffer, len(buffer))
        return buffer.value.decode("utf-8", "replace") if size >= 0 else None

    @cached_property
    def facts(self) -> ModelFacts:
        handle = self.handle
        name = llama_cpp.llama_ftype_name(llama_cpp.llama_model_ftype(handle))
        return ModelFacts(
            architecture=self.metadata("general.architecture") or "unknown",
            n_vocab=self.vocabulary.n_tokens,
            n_params=llama_cpp.llama_model_n_params(handle),
            n_bytes=llama_cpp.llama_model_size(handle),
            n_context_trained=llama_cpp.llama_model_n_ctx_train(handle),
            quantisation=name.decode() if name else "unknown",
        )

    @cached_property
    def digest(self) -> bytes:
        """Changes with the file's content, its name aside, and with llama.cpp's build.

        Of the file its size and 256 blocks of it count, evenly spread, the first (the metadata) among them: reading
        forty gigabytes at each start would be no service.
        """
        digest = hashlib.sha256(llama_cpp.llama_print_system_info())
        digest.update(llama_cpp.__version__.encode())
        size, block = self.path.stat().st_size, 1 << 16
        digest.update(str(size).encode())
        with self.path.open("rb") as file:
            for i in range(256):
                file.seek(max(size - block, 0) * i // 255)
                digest.update(file.read(block))
        return digest.digest()


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
            self._context = _apart(llama_cpp.llama_init_from_model, model.handle, params)
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

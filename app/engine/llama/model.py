"""A GGUF file in memory: its weights, what it says of itself, and how long they stay."""

import ctypes
import hashlib
import logging
import os
import weakref
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import llama_cpp

from app.engine import stream
from app.engine.llama import recoding
from app.engine.llama.library import apart, ggml, hear, hearing
from app.engine.llama.vocabulary import LlamaVocabulary
from app.engine.offload import Offload
from app.engine.recode import Recoded
from app.errors import ModelError

logger = logging.getLogger("segue.engine")

Progress = Callable[[float], bool | None]
"""Called with 0..1 while a model loads; False ends that."""

_UPGRADE = f"it is too new for llama-cpp-python {llama_cpp.__version__}: upgrade that, or choose another model"
_REMEDIES = {
    "unknown model architecture": _UPGRADE,
    "only supports up to version": _UPGRADE,
    "alloc": "memory is short: fewer --gpu-layers, --no-repack or a model of fewer bits need less",
    "main_gpu": "--main-gpu counts the GPUs from 0",
}


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """What the file says of itself. n_bytes: its weights, as it has them; quantisation: as llama.cpp names it."""

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
        self.is_recoded = False
        """Whether some weights are in another format than in the file, number for number the same."""
        hearing.forget()
        llama_cpp.llama_log_set(hear, None)
        ggml.load_kernels()
        llama_cpp.llama_backend_init()
        params = _model_params(offload)
        if is_hollow:
            params.no_alloc, params.load_mode = True, llama_cpp.LLAMA_LOAD_MODE_NONE
        report = llama_cpp.llama_progress_callback(lambda done, _: not progress or progress(done) is not False)
        params.progress_callback = report
        with hearing.lines() as self.log:
            handle = apart(self._load, params)
        if not handle:
            remedy = hearing.remedy(_REMEDIES, "it may be cut off: download it again")
            raise ModelError(f"{path}: llama.cpp cannot load this file: {hearing.cause}; {remedy}.")
        self.weights = _Weights(handle)

    def _load(self, params: Any) -> Any:
        """llama.cpp's model; None where it cannot be made."""
        if recoding.helps_here(self.offload):
            with recoding.recoded(self.path) as source:
                if source:
                    return self._load_recoded(params, source)
        return llama_cpp.llama_model_load_from_file(os.fsencode(self.path), params)

    def _load_recoded(self, params: Any, source: Recoded) -> Any:
        logger.info("%s: weights in Q5_0 are loaded as Q8_0, for which there are matrix units", self.path)
        if params.load_mode != llama_cpp.LLAMA_LOAD_MODE_NONE:
            params.load_mode = _load_mode(replace(self.offload, mmap=False))  # a stream cannot be mapped
        self.is_recoded = True
        with stream.opened(source) as file:
            return llama_cpp.llama_model_load_from_file_ptr(file, params)

    @property
    def handle(self) -> Any:
        return self.weights.handle

    @property
    def n_bytes(self) -> int:
        """Bytes of the weights, each counted once, as they were loaded."""
        size: int = llama_cpp.llama_model_size(self.handle)
        return size

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
            n_bytes=sum(size for _, size in ggml.tensors(self.path)) if self.is_recoded else self.n_bytes,
            n_context_trained=llama_cpp.llama_model_n_ctx_train(handle),
            quantisation=name.decode() if name else "unknown",
        )

    @cached_property
    def digest(self) -> bytes:
        """Changes with the file's content, its name aside, with llama.cpp's build, and with whether it is recoded.

        Of the file its size and 256 blocks of it count, evenly spread, the first (the metadata) among them: reading
        forty gigabytes at each start would be no service.
        """
        digest = hashlib.sha256(llama_cpp.llama_print_system_info())
        digest.update(f"{llama_cpp.__version__} {self.is_recoded}".encode())
        size, block = self.path.stat().st_size, 1 << 16
        digest.update(str(size).encode())
        with self.path.open("rb") as file:
            for i in range(256):
                file.seek(max(size - block, 0) * i // 255)
                digest.update(file.read(block))
        return digest.digest()

"""The composition root: the only module that knows all others. Settings and a model make an application."""

import hashlib
import os
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from litestar import Litestar
from litestar.config.cors import CORSConfig
from litestar.di import Provide
from litestar.types import ASGIApp

from app import __version__
from app.api import completions, description, editors, errors, health, metrics, models, tokenizer
from app.api.auth import KeyGuard
from app.api.bodies import MAX_BODY
from app.api.cors import ForeignPreflight
from app.api.disconnect import ClientGone
from app.api.drain import Drain
from app.api.head import HeadAsGet
from app.api.journal import Journal
from app.api.metrics import Metrics
from app.api.request_id import RequestId
from app.completion.checks import Rules
from app.completion.infill import Infill, check_template
from app.completion.service import CompletionService, Served
from app.completion.tokenizer import TokenizerService
from app.engine import header, probe
from app.engine.backend import Backend, Vocabulary
from app.engine.engine import Engine
from app.engine.llama import MAX_SLOTS, LlamaBackend, LlamaModel, Sizes
from app.engine.scheduler import Budget
from app.errors import SettingsError
from app.names import file_of, names_of
from app.schemas import Model, ModelList, ModelMeta, Props
from app.settings import Settings

DEFAULT_CONTEXT = 8192
N_SLOTS = 64
"""Sequences in the cache, running or ended, and logits rows of one decode: llama.cpp reserves a row for each slot, at
eight bytes a token of the vocabulary, two megabytes on a large one."""
LOCAL_ORIGINS = r"https?://(localhost|127\.0\.0\.1|\[::1\])(:\d+)?"
"""Pages of this machine: they may call without being named."""
RESIDENT_SHARE = 2
"""Of the cells, one in so many may stay with ended sequences while none runs."""
N_WORTH = 16
"""Tokens from which on a beginning is shared between requests. Reading fewer again costs a step or two, and spares
short requests the last digits of a log probability: they repeat exactly."""
N_BESIDE = 128
"""Prompt tokens that a step reads beside running sequences: they wait for it."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """A model, ready to be served."""

    backend: Backend
    vocabulary: Vocabulary
    infill: Infill
    names: tuple[str, ...]
    fingerprint: str
    meta: ModelMeta
    device: str
    n_threads: int


def load(settings: Settings, progress: Callable[[float], None] | None = None) -> Loaded:
    """Read the model that the settings name. Raises StartError."""
    path = file_of(settings.model)
    check_template(settings.fim_template)  # before the model, which takes its time
    header.check(path)
    probe.check(probe.Trial(str(path), settings.gpu_layers, settings.repack, n_threads(settings)))
    model = LlamaModel(path, settings.gpu_layers, progress, repack=settings.repack)
    sizes = sizes_of(settings, model.facts.n_context_trained)
    numbers = (sizes.n_batch, sizes.n_threads, settings.gpu_layers, settings.repack)
    fingerprint = hashlib.sha256(model.digest + repr(numbers).encode()).hexdigest()[:12]
    facts = model.facts
    infill = Infill(
        model.vocabulary, settings.fim_order, settings.fim_template, may_search=settings.insertion == "search"
    )
    return Loaded(
        backend=LlamaBackend(model, sizes),
        vocabulary=model.vocabulary,
        infill=infill,
        names=names_of(model.path, settings.alias),
        fingerprint=f"fp_{fingerprint}",
        meta=ModelMeta(
            architecture=facts.architecture,
            n_vocab=facts.n_vocab,
            n_params=facts.n_params,
            size=facts.n_bytes,
            quantization=facts.quantisation,
            n_ctx_train=facts.n_context_trained,
            supports_suffix=infill.is_possible,
        ),
        device=model.device,
        n_threads=sizes.n_threads,
    )


def sizes_of(settings: Settings, n_context_trained: int) -> Sizes:
    """The context's sizes: what the settings say, else what suits the model and the machine. Raises SettingsError."""
    n_context = settings.ctx_size or min(n_context_trained, DEFAULT_CONTEXT)
    n_cells = settings.cache_size or max(2 * n_context, DEFAULT_CONTEXT)
    if n_cells < n_context:
        raise SettingsError(
            f"cache_size is {n_cells}; it must be at least ctx_size, which is {n_context}, or the longest request "
            "would never fit."
        )
    n_slots = min(max(2 * settings.parallel, N_SLOTS), MAX_SLOTS)
    return Sizes(
        n_context=n_context,
        n_cells=-(-n_cells // 256) * 256,
        n_slots=n_slots,
        n_batch=settings.batch_size,
        # llama.cpp reserves a row for each slot, and aborts the process where there are fewer.
        n_rows=n_slots,
        n_threads=n_threads(settings),
    )


def n_threads(settings: Settings) -> int:
    """Threads that compute."""
    return settings.threads or n_processors()


def n_processors() -> int:
    """The processors that this process may use: a container's share of them, where the system tells."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def create_engine(settings: Settings, loaded: Loaded) -> Engine:
    """The engine of a loaded model."""
    limits = loaded.backend.limits
    budget = Budget(
        settings.parallel,
        limits.n_batch,
        limits.n_rows,
        min(N_BESIDE, limits.n_batch),
        limits.n_cells // RESIDENT_SHARE,
        N_WORTH,
    )
    return Engine(
        loaded.backend,
        budget,
        settings.max_waiting,
        keeps=settings.prefix_cache,
        drafts=settings.draft == "prompt",
    )


def create_app(settings: Settings, loaded: Loaded, engine: Engine, drain: Drain) -> ASGIApp:
    """The application that serves a loaded model by an engine, which it starts and closes, until `drain` begins."""
    limits = loaded.backend.limits
    served = Served(loaded.names, loaded.fingerprint, limits.n_context)
    rules, timeout = rules_of(settings), settings.request_timeout
    service = CompletionService(engine, loaded.vocabulary, served, rules, loaded.infill, timeout)
    counts = Metrics(engine.snapshot)
    listed = model_list(served, loaded.meta)

    cors = CORSConfig(
        allow_origins=list(settings.cors_origin), allow_origin_regex=LOCAL_ORIGINS, expose_headers=["x-request-id"]
    )

    @asynccontextmanager
    async def running(_: Litestar) -> AsyncIterator[None]:
        engine.start()
        try:
            yield
        finally:
            await engine.close()

    def given(value: Any) -> Provide:
        return Provide(lambda: value, sync_to_thread=False, use_cache=True)

    app = Litestar(
        [
            completions.create_completion,
            models.list_models,
            models.get_model,
            tokenizer.tokenize,
            tokenizer.detokenize,
            tokenizer.tokenizer_info,
            editors.fim_completion,
            editors.infill,
            editors.get_props,
            health.health,
            metrics.get_metrics,
            description.schema,
            description.docs,
        ],
        dependencies={
            "service": given(service),
            "engine": given(engine),
            "models": given(listed),
            "metrics": given(counts),
            "settings": given(settings),
            "tokenizer": given(TokenizerService(loaded.vocabulary, limits.n_context)),
            "props": given(props_of(settings, loaded)),
        },
        guards=[KeyGuard(settings.api_key), drain],
        cors_config=cors,
        exception_handlers={Exception: errors.respond, ClientGone: errors.nobody},
        lifespan=[running],
        openapi_config=None,
        request_max_body_size=MAX_BODY,
        logging_config=None,
    )
    seen = Journal(ForeignPreflight(app, cors), counts, with_texts=settings.log_prompts)
    return RequestId(HeadAsGet(seen))


def rules_of(settings: Settings) -> Rules:
    """What a request may ask; strict mode has OpenAI's ceilings unless others were set."""
    default = Rules(max_logprobs=5, max_stop=4, strict=True) if settings.strict else Rules()
    return Rules(
        max_logprobs=default.max_logprobs if settings.max_logprobs is None else settings.max_logprobs,
        max_stop=settings.max_stop or default.max_stop,
        strict=settings.strict,
    )


def props_of(settings: Settings, loaded: Loaded) -> Props:
    """The answer of /props. It names the model, not where its file lies."""
    return Props(
        default_generation_settings={"n_ctx": loaded.backend.limits.n_context},
        total_slots=settings.parallel,
        model_alias=loaded.names[0],
        model_path=loaded.names[0],
        chat_template=loaded.vocabulary.chat_template or "",
        modalities={"vision": False, "audio": False},
        build_info=f"segue {__version__}",
    )


def model_list(served: Served, meta: ModelMeta) -> ModelList:
    """The answer of /v1/models."""
    created = int(time.time())
    return ModelList(
        "list",
        [
            Model(
                name,
                "model",
                created,
                owned_by="segue",
                root=served.id,
                max_model_len=served.n_context,
                meta=meta,
            )
            for name in served.names
        ],
    )

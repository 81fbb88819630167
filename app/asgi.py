"""The composition root: the only module that knows all others. Settings and a model make an application."""

import hashlib
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, fields
from typing import Any

from litestar import Litestar
from litestar.config.cors import CORSConfig
from litestar.di import Provide
from litestar.types import ASGIApp
from msgspec import structs

from app import __version__
from app.api import completions, description, editors, errors, health, metrics, models, tokenizer
from app.api.auth import KeyGuard
from app.api.bodies import MAX_BODY
from app.api.cors import ForeignPreflight
from app.api.disconnect import ClientGone
from app.api.drain import Drain
from app.api.head import HeadAsGet
from app.api.journal import Journal
from app.api.leases import Leases, Leasing
from app.api.metrics import Metrics
from app.api.request_id import RequestId
from app.catalogue.entries import Entry
from app.completion.checks import Rules
from app.completion.infill import Infill, check_template
from app.completion.service import CompletionService, Served
from app.completion.serving import House, Serving
from app.completion.tokenizer import TokenizerService
from app.engine import header, probe
from app.engine.backend import Backend, Vocabulary
from app.engine.engine import Engine
from app.engine.llama import MAX_SLOTS, LlamaBackend, LlamaModel, Progress, ggml
from app.engine.offload import Offload
from app.engine.placement import Placement
from app.engine.scheduler import Budget
from app.engine.sizes import Sizes
from app.engine.turns import InTurn, Turns
from app.names import catalogue_entry, file_of, names_of
from app.schemas import DeviceShare, ModelMeta, OffloadMeta, Props
from app.settings import Settings

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
"""Tokens that a step reads of each prompt on average beside running sequences: they wait for it."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """A model, ready to be served. backends: what llama.cpp was built for."""

    backend: Backend
    vocabulary: Vocabulary
    infill: Infill
    names: tuple[str, ...]
    fingerprint: str
    meta: ModelMeta
    placement: Placement
    backends: tuple[str, ...]
    n_threads: int


def load(settings: Settings, progress: Progress | None = None) -> Loaded:
    """Read the model that the settings name; `progress` may end that. Raises StartError."""
    path = file_of(settings.model)
    settings = with_defaults(settings, catalogue_entry(path))
    check_template(settings.fim_template)  # before the model, which takes its time
    header.check(path)
    sizes = sizes_of(settings)
    offload = probe.check(probe.Trial(str(path), offload_of(settings), sizes), progress=progress)
    model = LlamaModel(path, offload, progress)
    facts = model.facts
    sizes = sizes.settled(facts.n_context_trained)
    infill = Infill(
        model.vocabulary, settings.fim_order or "psm", settings.fim_template, may_search=settings.insertion == "search"
    )
    backend = LlamaBackend(model, sizes)
    placement = backend.placement
    return Loaded(
        backend=backend,
        vocabulary=model.vocabulary,
        infill=infill,
        names=names_of(model.path, settings.alias),
        fingerprint=fingerprint_of(model.digest, sizes, offload, placement),
        meta=ModelMeta(
            architecture=facts.architecture,
            n_vocab=facts.n_vocab,
            n_params=facts.n_params,
            size=facts.n_bytes,
            quantization=facts.quantisation,
            n_ctx_train=facts.n_context_trained,
            supports_suffix=infill.is_possible,
            offload=offload_meta(settings, placement),
        ),
        placement=placement,
        backends=tuple(ggml.backends()),
        n_threads=sizes.n_threads,
    )


def with_defaults(settings: Settings, entry: Entry | None) -> Settings:
    """What the user left open, as the catalogue has it for a model."""
    if entry is None:
        return settings
    own = {"ctx_size": entry.context, "fim_order": entry.fim_order, "fim_template": entry.fim_template}
    return structs.replace(settings, **{key: value for key, value in own.items() if getattr(settings, key) is None})


def sizes_of(settings: Settings) -> Sizes:
    """The context's sizes, as far as the settings and the machine decide them; the model settles the rest."""
    n_slots = min(max(2 * settings.parallel, N_SLOTS), MAX_SLOTS)
    return Sizes(
        n_context=settings.ctx_size or 0,
        n_cells=settings.cache_size or 0,
        n_slots=n_slots,
        n_batch=settings.batch_size,
        # llama.cpp reserves a row for each slot, and aborts the process where there are fewer.
        n_rows=n_slots,
        n_threads=settings.threads or n_processors(),
    )


def offload_of(settings: Settings) -> Offload:
    """What the settings ask of the devices."""
    return Offload(**{field.name: getattr(settings, field.name) for field in fields(Offload)})


def offload_meta(settings: Settings, placement: Placement) -> OffloadMeta:
    """What was asked, and what happened, for /v1/models."""
    return OffloadMeta(
        gpu_layers_asked=settings.gpu_layers,
        gpu_layers=placement.n_gpu_layers,
        layers=placement.n_layers,
        flash_attention=placement.flash_attn,
        cache_type_k=settings.cache_type_k,
        cache_type_v=settings.cache_type_v,
        devices=[
            DeviceShare(
                share.device, share.description, share.n_layers, share.n_weights, share.n_cache, share.n_compute
            )
            for share in placement.shares
        ],
    )


def fingerprint_of(digest: bytes, sizes: Sizes, offload: Offload, placement: Placement) -> str:
    """Changes with all that can change the numbers: what happened counts, not how it was asked for."""
    numbers = (
        sizes.n_batch,
        sizes.n_threads,
        offload.repack,
        offload.cache_type_k,
        offload.cache_type_v,
        offload.kv_offload or not placement.n_gpu_layers,
        placement.flash_attn,
        [(gpu.description, gpu.n_layers) for gpu in placement.gpus],
    )
    return f"fp_{hashlib.sha256(digest + repr(numbers).encode()).hexdigest()[:12]}"


def n_processors() -> int:
    """The processors that this process may use: a container's share of them, where the system tells."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def create_engine(settings: Settings, loaded: Loaded, turns: Turns | None = None) -> Engine:
    """The engine of a loaded model. turns: where there are others."""
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
        InTurn(loaded.backend, turns) if turns else loaded.backend,
        budget,
        settings.max_waiting,
        keeps=settings.prefix_cache,
        drafts=settings.draft == "prompt",
        n_threads=loaded.n_threads,
        patience=settings.step_timeout,
    )


def create_service(settings: Settings, loaded: Loaded, engine: Engine) -> CompletionService:
    """Completions by a loaded model."""
    served = Served(loaded.names, loaded.fingerprint, loaded.backend.limits.n_context)
    rules = rules_of(settings)
    return CompletionService(engine, loaded.vocabulary, served, rules, loaded.infill, settings.request_timeout)


def create_serving(settings: Settings, loaded: Loaded, turns: Turns | None = None) -> Serving:
    """All that serves a loaded model. turns: where there are others."""
    engine = create_engine(settings, loaded, turns)
    return Serving(
        engine,
        create_service(settings, loaded, engine),
        TokenizerService(loaded.vocabulary, loaded.backend.limits.n_context),
        props_of(settings, loaded),
        loaded.meta,
        sum(share.n_weights + share.n_cache + share.n_compute for share in loaded.placement.shares),
    )


def create_app(settings: Settings, house: House, drain: Drain) -> ASGIApp:
    """The application that serves the models of a house, which it opens and closes, until `drain` begins."""
    counts = Metrics(house.seats, labelled=bool(settings.models))
    cors = CORSConfig(
        allow_origins=list(settings.cors_origin), allow_origin_regex=LOCAL_ORIGINS, expose_headers=["x-request-id"]
    )

    @asynccontextmanager
    async def running(_: Litestar) -> AsyncIterator[None]:
        house.start()
        try:
            yield
        finally:
            await house.close()

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
            "house": given(house),
            "leasing": given(Leasing(house, rules_of(settings), settings.request_timeout)),
            "metrics": given(counts),
            "settings": given(settings),
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
    return RequestId(HeadAsGet(Leases(seen)))


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

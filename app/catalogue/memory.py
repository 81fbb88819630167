"""What a model takes in memory at a context, by arithmetic alone: weights, and the cache of keys and values.

Owns the sum. Refuses to guess: where the file does not tell the size of a cache, it says so.
"""

from collections.abc import Iterator

from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from msgspec import Struct

from app.catalogue.reader import Gguf
from app.engine.offload import CacheType
from app.engine.sizes import Sizes

_STATES = ("ssm.", "wkv.", "shortconv.", "kda.", "token_shift_count")
_MOST_LAYERS = 1 << 16
_RECURRENT = ("mamba", "rwkv", "arwkv")


class Memory(Struct, frozen=True, kw_only=True):
    """In bytes. context: tokens of one request; cells: tokens that all running sequences share room for.

    cache: None where the file does not tell; `note` says why.
    """

    context: int
    cells: int
    weights: int
    cache: int | None
    note: str | None


def memory(model: Gguf, sizes: Sizes, cache_type_k: CacheType = "f16", cache_type_v: CacheType = "f16") -> Memory:
    """As a server of these sizes takes it. Raises StartError: the file is no model, or the sizes do not suit it."""
    sizes = sizes.settled(model.n_context_trained)
    note = _unknown(model, model.architecture)
    return Memory(
        context=sizes.n_context,
        cells=sizes.n_cells,
        weights=sum(int(tensor.n_bytes) for tensor in model.tensors),
        cache=None if note else _cache(model, sizes.n_cells, cache_type_k, cache_type_v),
        note=note,
    )


def _cache(model: Gguf, n_cells: int, cache_type_k: CacheType, cache_type_v: CacheType) -> int:
    """Bytes of all layers' keys and values."""
    layers = list(_layers(model, model.architecture))
    n_keys, n_values = (n_cells * sum(numbers) for numbers in zip(*layers, strict=True)) if layers else (0, 0)
    return _bytes(n_keys, cache_type_k) + _bytes(n_values, cache_type_v)


def _bytes(n_numbers: int, cache_type: CacheType) -> int:
    """Quantised numbers come in blocks, each with its scales."""
    n_block, n_bytes = GGML_QUANT_SIZES[GGMLQuantizationType[cache_type.upper()]]
    return n_numbers * n_bytes // n_block


def _unknown(model: Gguf, architecture: str) -> str | None:
    """Why the size of the cache cannot be computed."""
    if model.has(*(f"{architecture}.{key}" for key in _STATES)) or architecture.startswith(_RECURRENT):
        return "recurrent layers keep a state for each sequence, whose size the file does not tell"
    if model.has(f"{architecture}.attention.indexer."):
        return "the attention keeps an index of its own, whose size the file does not tell"
    if not _heads(model, architecture, "head_count"):
        return "the file tells nothing of attention"
    if not 0 < (n_layers := model.get(f"{architecture}.block_count", int) or 0) <= _MOST_LAYERS:
        return f"the file tells of {n_layers} layers"
    lengths = [model.get(f"{architecture}.attention.key_length{end}", int) for end in ("", "_swa")]
    if lengths[1] not in (None, lengths[0]):
        return "layers with a sliding window have heads of another size"
    return None


def _layers(model: Gguf, architecture: str) -> Iterator[tuple[int, int]]:
    """How many numbers of a token each layer keeps, of keys and of values.

    A sliding window saves none: all cells are kept, to be shared.
    """

    def value(key: str, default: int = 0) -> int:
        return model.get(f"{architecture}.{key}", int) or default

    n_layers = value("block_count") - value("nextn_predict_layers")
    n_heads = _heads(model, architecture, "head_count", n_layers)
    n_heads_kv = _heads(model, architecture, "head_count_kv", n_layers) or n_heads
    usual = value("embedding_length") // max(*n_heads, 1)
    n_key = value("attention.key_length", usual)
    # With latent attention the keys hold what values are made of.
    n_value = 0 if value("attention.key_length_mla") else value("attention.value_length", usual)
    n_kept = n_layers - value("attention.shared_kv_layers")
    for n in n_heads_kv[:n_kept]:
        yield n * n_key, n * n_value


def _heads(model: Gguf, architecture: str, key: str, n_layers: int = 1) -> list[int]:
    """One number a layer, of one for all or a list; none where the file has neither."""
    key = f"{architecture}.attention.{key}"
    if (n_heads := model.get(key, int)) is not None:
        return [n_heads] * n_layers
    return [n for n in model.get(key, list) or () if isinstance(n, int)]

"""What a model's file says of itself, and what follows from that."""

from collections.abc import Iterator
from pathlib import Path

from gguf import LlamaFileType
from msgspec import Struct

from app.catalogue.memory import Memory, memory
from app.catalogue.reader import Gguf
from app.engine.sizes import Sizes

_TOKENIZER = "tokenizer.ggml"
_ROLES = {
    "bos": ("bos",),
    "eos": ("eos",),
    "eot": ("eot",),
    "eom": ("eom",),
    "unknown": ("unknown",),
    "separator": ("seperator",),  # as GGUF spells it
    "padding": ("padding",),
    "fim_prefix": ("fim_pre", "prefix"),
    "fim_suffix": ("fim_suf", "suffix"),
    "fim_middle": ("fim_mid", "middle"),
}
"""What a token is for, and the keys that say which it is, older ones last."""
_FIM_WORDS = {
    "fim_prefix": (
        "<|fim_prefix|>", "<fim-prefix>", "<fim_prefix>", "<｜fim▁begin｜>", "<PRE>", "▁<PRE>", "<|code_prefix|>",
        "<|prefix|>",
    ),
    "fim_suffix": (
        "<|fim_suffix|>", "<fim-suffix>", "<fim_suffix>", "<｜fim▁hole｜>", "<SUF>", "▁<SUF>", "<|code_suffix|>",
        "<|suffix|>",
    ),
    "fim_middle": (
        "<|fim_middle|>", "<fim-middle>", "<fim_middle>", "<｜fim▁end｜>", "<MID>", "▁<MID>", "<|code_middle|>",
        "<|middle|>",
    ),
}  # fmt: skip
"""What llama.cpp knows these tokens by where no key names them."""


class SpecialToken(Struct, frozen=True):
    """A token that is no text, and what it is for."""

    role: str
    id: int
    text: str


class Description(Struct, frozen=True, kw_only=True):
    """A model. size: bytes of its files; context: tokens that it was trained on; adds_bos: None where the file leaves
    that to its tokenizer; can_insert: whether its vocabulary has what frames a gap."""

    path: str
    files: int
    size: int
    name: str | None
    architecture: str
    parameters: int
    quantisation: str
    context: int
    vocabulary: int
    tokenizer: str
    adds_bos: bool | None
    special_tokens: list[SpecialToken]
    chat_template: bool
    can_insert: bool
    licence: str | None
    memory: Memory


def describe(path: Path, n_context: int | None = None) -> Description:
    """Read a model's metadata. n_context: the tokens of a request to reckon memory for. Raises StartError."""
    model = Gguf(path)
    tokens = list(_special_tokens(model))
    return Description(
        path=str(path),
        files=len(model.paths),
        size=sum(each.stat().st_size for each in model.paths),
        name=model.get("general.name", str),
        architecture=model.architecture,
        parameters=sum(int(tensor.n_elements) for tensor in model.tensors),
        quantisation=_quantisation(model),
        context=model.n_context_trained,
        vocabulary=model.length(f"{_TOKENIZER}.tokens"),
        tokenizer=model.get(f"{_TOKENIZER}.model", str) or "unknown",
        adds_bos=model.get(f"{_TOKENIZER}.add_bos_token", bool),
        special_tokens=tokens,
        chat_template=model.get("tokenizer.chat_template", str) is not None,
        can_insert={"fim_prefix", "fim_suffix"} <= {token.role for token in tokens},
        licence=model.get("general.license", str),
        memory=memory(model, Sizes(n_context or 0, 0, 1, 1, 1, 1)),
    )


def _special_tokens(model: Gguf) -> Iterator[SpecialToken]:
    """Those that a key names, and those for insertion that only their text tells."""
    texts = list(map(str, model.get(f"{_TOKENIZER}.tokens", list) or ()))
    ids = {text: token for token, text in enumerate(texts)}
    for role, keys in _ROLES.items():
        named = [model.get(f"{_TOKENIZER}.{key}_token_id", int) for key in keys]
        told = [ids.get(word) for word in _FIM_WORDS.get(role, ())]
        token = next((token for token in (*named, *told) if token is not None and 0 <= token < len(texts)), None)
        if token is not None:
            yield SpecialToken(role, token, texts[token])


def _quantisation(model: Gguf) -> str:
    """As files are named: Q4_K_M, F16."""
    kind = model.get("general.file_type", int)
    try:
        return LlamaFileType(-1 if kind is None else kind).name.removeprefix("MOSTLY_").removeprefix("ALL_")
    except ValueError:
        return "unknown"

"""A model's tokens: text to ids and back, which are special, which frame a gap."""

import ctypes
from functools import cached_property
from typing import TYPE_CHECKING

import llama_cpp
import numpy as np

from app.engine.backend import FimTokens
from app.errors import GenerationFailed

if TYPE_CHECKING:
    from app.engine.llama.model import LlamaModel

_MARK = "\ue000"


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


def _token_or_none(token: int) -> int | None:
    return token if token >= 0 else None

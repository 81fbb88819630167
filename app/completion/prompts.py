"""What a prompt becomes: the tokens that the model reads, the text that is echoed, and the entries between them.

Owns the rules of BOS, of the space that SentencePiece puts before a text, and of how a token is written. Refuses to
know what is generated.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from app.engine.backend import Vocabulary
from app.engine.text import Transcript


@dataclass(frozen=True, eq=False)
class Prompt:
    """One prompt, ready to be read.

    tokens: what the model reads. n_added: how many of them at the start the server put there (BOS); they have no
    entries. text: what is echoed. is_text: it came as a string, so that special tokens are part of its text.
    n_dropped: tokens of the beginning that were left out, as the request asked.
    """

    vocabulary: Vocabulary
    tokens: NDArray[np.int32]
    n_added: int
    text: str
    is_text: bool
    n_dropped: int = 0

    @cached_property
    def n_chars(self) -> int:
        """Length of the text in code points: where the completion's offsets begin."""
        return len(self.text)

    @property
    def score_from(self) -> int:
        """Index of the first token that can be scored: the entry before it is the first, and null."""
        return self.n_added + 1

    def entries(self) -> Iterator[tuple[int, str, int]]:
        """(token id, its text, its offset) of each token that was sent, in order."""
        transcript, after_special = Transcript(), True
        silent: list[tuple[int, str]] = []
        for token in self.tokens[self.n_added :].tolist():
            bare = self.vocabulary.name(token)
            special = self.vocabulary.is_special(token)
            if after_special and not special and self.vocabulary.adds_space:
                bare = bare.removeprefix(b" ")
            piece = bare if self.is_text or not special else b""
            transcript.push(piece)
            silent.append((token, written(bare)))
            if piece:
                yield from ((*entry, transcript.start) for entry in silent)
                silent.clear()
            after_special = special
        yield from ((*entry, transcript.n_chars) for entry in silent)


def from_text(vocabulary: Vocabulary, text: str, last: int | None = None) -> Prompt:
    """A string as the model reads it: special tokens parsed, BOS before it if the model asks for one and it has none.

    An empty text reads the token that documents begin with. `last`: only so many of its last tokens are kept; it is
    then a token array like any other.
    """
    bare = vocabulary.tokenize(text)
    tokens = with_bos(vocabulary, bare) or [start_of_document(vocabulary)]
    if last is not None and last < len(tokens):
        return from_tokens(vocabulary, tokens, last)
    return Prompt(vocabulary, np.array(tokens, np.int32), len(tokens) - len(bare), text, is_text=True)


def from_tokens(vocabulary: Vocabulary, tokens: list[int], last: int | None = None) -> Prompt:
    """A token array as it is; `last`: only so many of its last tokens."""
    kept = tokens[-last:] if last is not None else tokens
    text = decoded(vocabulary, kept)
    return Prompt(vocabulary, np.array(kept, np.int32), 0, text, is_text=False, n_dropped=len(tokens) - len(kept))


def with_bos(vocabulary: Vocabulary, tokens: list[int]) -> list[int]:
    """The tokens of a text after the BOS that the model asks for, unless they begin with it."""
    if vocabulary.adds_bos and vocabulary.bos is not None and tokens[:1] != [vocabulary.bos]:
        return [vocabulary.bos, *tokens]
    return tokens


def start_of_document(vocabulary: Vocabulary) -> int:
    """The token after which a document begins where no BOS is added: EOS, as in training data; else BOS."""
    for token in (vocabulary.eos, vocabulary.bos):
        if token is not None:
            return token
    return 0


def decoded(vocabulary: Vocabulary, tokens: list[int], special: bool = False) -> str:
    """The text of a token array, without the tokenizer's own spaces; `special`: with special tokens, by name."""
    transcript, parts, after_special = Transcript(), [], True
    for token in tokens:
        piece = vocabulary.name(token) if special else vocabulary.piece(token)
        if after_special and vocabulary.adds_space:
            piece = piece.removeprefix(b" ")
        parts.append(transcript.push(piece))
        after_special = vocabulary.is_special(token)
    return "".join(parts)


def written(name: bytes) -> str:
    """How a token is written in an answer: its text, or its bytes where they are no text by themselves."""
    try:
        return name.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in name)

"""A choice, from the engine's events: text, tokens, log probabilities, offsets, echo, finish reason.

Owns the shape of a choice. Plain and streamed answers come from the same pieces: a plain choice is its pieces,
joined. Refuses to know which request a choice belongs to.
"""

from collections.abc import Iterable

from msgspec import UNSET

from app.completion.prompts import Prompt, written
from app.engine.backend import Vocabulary
from app.engine.events import Delta, Finished, PromptRead, Score, Token
from app.schemas import Choice, Logprobs


class ChoiceWriter:
    """Turns what happens to one candidate into the pieces of a choice."""

    def __init__(self, prompt: Prompt, *, echo: bool, logprobs: bool, token_ids: bool) -> None:
        self._prompt = prompt
        self._vocabulary = prompt.vocabulary
        self._echo = echo
        self._logprobs = logprobs
        self._token_ids = token_ids

    def begin(self, read: PromptRead) -> Choice | None:
        """The piece that the prompt makes, if it makes one: its echo."""
        if not self._echo and not self._token_ids:
            return None
        piece = Choice(self._prompt.text if self._echo else "", 0, self._logprobs_of([]))
        if self._echo and self._logprobs:
            piece.logprobs = self._echoed(read.scores)
        if self._token_ids:
            piece.token_ids = []
            piece.prompt_token_ids = self._prompt.tokens.tolist()
        return piece

    def _echoed(self, scores: list[Score]) -> Logprobs:
        entries = Logprobs()
        for i, (token, text, offset) in enumerate(self._prompt.entries()):
            entries.tokens.append(text)
            entries.text_offset.append(offset)
            entries.token_logprobs.append(scores[i - 1].logprob if i else None)
            entries.top_logprobs.append(top_entries(self._vocabulary, token, text, scores[i - 1]) if i else None)
        return entries

    def go_on(self, event: Delta | Finished) -> Choice:
        """The piece that new text makes; the last one has the finish reason."""
        piece = Choice(event.text, 0, self._logprobs_of(event.tokens))
        if isinstance(event, Finished):
            piece.finish_reason = event.reason.value
        if self._token_ids:
            piece.token_ids = [token.id for token in event.tokens]
        return piece

    def _logprobs_of(self, tokens: Iterable[Token]) -> Logprobs | None:
        if not self._logprobs:
            return None
        entries = Logprobs()
        for token in tokens:
            assert token.score is not None, "a job whose logprobs are wanted scores its tokens"
            text = written(self._vocabulary.name(token.id))
            entries.tokens.append(text)
            entries.text_offset.append(self._prompt.n_chars + token.offset)
            entries.token_logprobs.append(token.score.logprob)
            entries.top_logprobs.append(top_entries(self._vocabulary, token.id, text, token.score))
        return entries


def top_entries(vocabulary: Vocabulary, token: int, text: str, score: Score) -> dict[str, float]:
    """The likeliest tokens by their text, and the token itself; of two with one text the likelier one stays."""
    entries: dict[str, float] = {}
    for other, logprob in score.top:
        entries.setdefault(text if other == token else written(vocabulary.name(other)), logprob)
    if all(other != token for other, _ in score.top):
        entries.setdefault(text, score.logprob)
    return entries


def joined(pieces: Iterable[Choice], index: int) -> Choice:
    """The whole choice that these pieces make."""
    whole = Choice("", index)
    texts = []
    for piece in pieces:
        texts.append(piece.text)
        if piece.logprobs:
            whole.logprobs = whole.logprobs or Logprobs()
            whole.logprobs.extend(piece.logprobs)
        if piece.token_ids is not UNSET:
            whole.token_ids = (whole.token_ids or []) + piece.token_ids
        if piece.prompt_token_ids is not UNSET:
            whole.prompt_token_ids = piece.prompt_token_ids
        whole.finish_reason = piece.finish_reason or whole.finish_reason
    whole.text = "".join(texts)
    return whole

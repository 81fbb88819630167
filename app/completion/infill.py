"""Filling in the middle: how a model that was trained for it reads what stands before and after the gap.

Owns the frame: special tokens, their order, the template. Refuses to know models without such tokens (they answer a
400 here; `search` may still insert) and what becomes of the completion.

The orders are those of Bavarian et al., "Efficient Training of Language Models to Fill in the Middle" (arXiv
2207.14255): prefix-suffix-middle and suffix-prefix-middle.
"""

import re

import numpy as np

from app.completion.prompts import Prompt, with_bos
from app.engine.backend import Vocabulary
from app.errors import InvalidRequest, SettingsError

GAP = re.compile(r"\{(prefix|suffix)\}")


def check_template(template: str | None) -> None:
    """Raises SettingsError unless a template, where there is one, has a place for prefix and suffix."""
    if template is not None and sorted(GAP.findall(template)) != ["prefix", "suffix"]:
        raise SettingsError(f"fim_template is {template!r}; it must hold {{prefix}} and {{suffix}} once each.")


class Infill:
    """The frame of one model."""

    def __init__(
        self,
        vocabulary: Vocabulary,
        order: str = "psm",
        template: str | None = None,
        *,
        may_search: bool = False,
    ) -> None:
        """order: "psm" or "spm". template: goes before the model's own tokens; holds {prefix} and {suffix} once each.

        may_search: whether a model that has neither may be searched. Raises SettingsError for a wrong template.
        """
        check_template(template)
        self._vocabulary = vocabulary
        self._order = order
        self._template = template
        self._may_search = may_search

    @property
    def is_possible(self) -> bool:
        """Whether this model can be asked, or searched."""
        return self.searches or self._is_framed

    @property
    def searches(self) -> bool:
        """Whether gaps are filled by `search`: it is allowed, and the model has no frame."""
        return self._may_search and not self._is_framed

    @property
    def _is_framed(self) -> bool:
        return self._template is not None or self._vocabulary.fim is not None

    @property
    def end_tokens(self) -> frozenset[int]:
        """Tokens that frame: a completion that comes to one has left the gap."""
        fim = self._vocabulary.fim
        return fim.every if fim else frozenset()

    def suffix(self, suffix: str) -> list[int]:
        """The tokens of a suffix, as they follow a gap."""
        return self._plain(suffix)

    def prompt(self, prefix: str, suffix: str, last: int | None = None) -> Prompt:
        """What the model reads for a gap; `last`: the most tokens, for which the prefix loses its beginning.

        Raises InvalidRequest where the model cannot be asked.
        """
        parts = {"prefix": self._plain(prefix), "suffix": self._plain(suffix)}
        framed = self._framed(parts)
        n_dropped = max(len(framed) - last, 0) if last is not None else 0
        if n_dropped > len(parts["prefix"]):
            raise InvalidRequest(
                f"truncate_prompt_tokens is {last}; the suffix and its frame alone are "
                f"{len(framed) - len(parts['prefix'])} tokens.",
                "truncate_prompt_tokens",
            )
        if n_dropped:
            framed = self._framed(parts | {"prefix": parts["prefix"][n_dropped:]})
        return Prompt(self._vocabulary, np.array(framed, np.int32), 0, prefix, is_text=True, n_dropped=n_dropped)

    def _plain(self, text: str) -> list[int]:
        """Text of the document: what looks like a special token in it is text, and no space is added."""
        return self._vocabulary.tokenize(text, parse_special=False, add_space=False)

    def _framed(self, parts: dict[str, list[int]]) -> list[int]:
        tokens = self._by_template(self._template, parts) if self._template else self._by_tokens(parts)
        return with_bos(self._vocabulary, tokens)

    def _by_template(self, template: str, parts: dict[str, list[int]]) -> list[int]:
        pieces = enumerate(GAP.split(template))
        read = [parts[piece] if i % 2 else self._vocabulary.tokenize(piece, add_space=False) for i, piece in pieces]
        return [token for tokens in read for token in tokens]

    def _by_tokens(self, parts: dict[str, list[int]]) -> list[int]:
        fim = self._vocabulary.fim
        if fim is None:
            raise InvalidRequest(
                "suffix: this model's vocabulary declares no fill-in-the-middle tokens, so that it cannot insert text. "
                "If it was trained to, its words for them can be set: --fim-template "
                "'<PRE>{prefix}<SUF>{suffix}<MID>'. Any model can be searched for what fits: --insertion search.",
                "suffix",
            )
        prefix, suffix = [fim.prefix, *parts["prefix"]], [fim.suffix, *parts["suffix"]]
        middle = [] if fim.middle is None else [fim.middle]
        return [*suffix, *prefix, *middle] if self._order == "spm" else [*prefix, *suffix, *middle]

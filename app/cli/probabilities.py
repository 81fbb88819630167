"""How sure a model was of a text: its tokens coloured by their probability, and a table of them.

Owns colours and columns; the numbers are the API's `logprobs`.
"""

import math
from collections.abc import Iterator
from collections.abc import Sequence as Ordered
from itertools import pairwise

from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.style import Style
from rich.table import Table
from rich.text import Text

from app.cli.console import tidy
from app.schemas import Choice, Logprobs

SHADES = (
    (0.01, Style(color="#ffffff", bgcolor="#440154")),
    (0.05, Style(color="#ffffff", bgcolor="#414487")),
    (0.20, Style(color="#ffffff", bgcolor="#2a788e")),
    (0.50, Style(color="#000000", bgcolor="#22a884")),
    (0.80, Style(color="#000000", bgcolor="#7ad151")),
    (1.00, Style(color="#000000", bgcolor="#fde725")),
)
"""Probabilities up to each bound. Viridis, whose steps look equally large, to the colour-blind too; letters are black
or white, so that they can be read on it whatever the terminal's own colours are."""
N_LIKELIEST = 3
"""Tokens told of at each place where nobody says how many: as many as fit into 80 columns."""
MOST_COLUMNS = 24
"""Of a token; what is longer is cut."""


def show(choice: Choice, console: Console, *, coloured: bool) -> None:
    """A choice's text, and the table of its tokens."""
    entries = choice.logprobs or Logprobs()
    shades = [_shade(logprob) if coloured else Style.null() for logprob in entries.token_logprobs]
    console.print(_text(choice.text, entries.text_offset, shades), end="\n\n", soft_wrap=True)
    tidy(console, _table(entries, shades, console.width))


def legend() -> Text:
    """What the colours mean."""
    return Text.assemble("probability up to ", *((f" {bound:.0%} ", shade) for bound, shade in SHADES))


def _shade(logprob: float | None) -> Style:
    """A probability's colour; none where nothing was predicted."""
    if logprob is None:
        return Style.null()
    return next((shade for bound, shade in SHADES if _probability(logprob) <= bound), SHADES[-1][1])


def _probability(logprob: float) -> float:
    """At most 1, whatever a server says."""
    return math.exp(min(logprob, 0.0))


def _text(text: str, offsets: Ordered[int], shades: Ordered[Style]) -> Text:
    """The text, each token's part in its colour. Of tokens that share a character the last one has it."""
    edges = [offset - offsets[0] for offset in offsets] + [len(text)]
    parts = [(text[start:end], shade) for (start, end), shade in zip(pairwise(edges), shades, strict=True)]
    return Text.assemble(*parts) if parts else Text(text)


def _table(entries: Logprobs, shades: Ordered[Style], n_columns: int) -> Table:
    tokens = [visible(token) for token in entries.tokens]
    widest = min(max(map(cell_len, tokens), default=0), MOST_COLUMNS)
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column("token", width=max(widest, len("token")), no_wrap=True)
    table.add_column("probability", justify="right")
    table.add_column("likeliest others")
    others = _others(entries, n_columns - widest - len("  probability  "))
    for token, logprob, shade, told in zip(tokens, entries.token_logprobs, shades, others, strict=True):
        table.add_row(Text.assemble((token, shade)), percent(logprob), Text(told, no_wrap=True))
    return table


def _others(entries: Logprobs, n_columns: int) -> Iterator[str]:
    """Which other tokens were likely at each place: as many in a line as fit, one below the other."""
    tops = zip(entries.tokens, entries.top_logprobs, strict=True)
    rows = [
        [f"{visible(other)} {percent(logprob)}" for other, logprob in (top or {}).items() if other != token]
        for token, top in tops
    ]
    width = max((cell_len(told) for row in rows for told in row), default=0) + 2
    n = max((n_columns + 2) // width, 1)
    for row in rows:
        cells = [set_cell_size(told, width) for told in row]
        yield "\n".join("".join(cells[i : i + n]).rstrip() for i in range(0, len(cells), n))


def visible(token: str) -> str:
    """A token in quotes, its spaces and line ends seen; one that is no text is its bytes."""
    return token if token.startswith("bytes:") else repr(token)


def percent(logprob: float | None) -> str:
    """A log probability as a percentage; nothing for a token that nobody predicted, as the first of a text."""
    if logprob is None:
        return ""
    value = 100 * _probability(logprob)
    return f"{value:.1f}%" if value >= 0.1 else f"{value:.1g}%"

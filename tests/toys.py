"""Two toy models whose answers can be computed: after token t the logits are row t of a table, bit for bit.

How a llama file does that: embeddings are one-hot (token t is the unit vector e_t of 1024 numbers) and the
one block's attention and feed-forward weights are zero, so e_t reaches the last norm unchanged. Its mean
square is exactly 1/1024 (the epsilon, 1e-12, is lost in float32's rounding), the norm therefore exactly e_t
x 32, and with a norm weight of 1/32 e_t again. Output row v holds table[0..n_vocab-1, v], and its product
with a unit vector adds one number to zeros. Nothing rounds, whatever the batch, the chunking or the
threads; and as the table lies on float16's grid, kernels that multiply in half or TF32 precision are exact
too.

The tables, by the printed text of the previous token (`Toy.piece` finds it in either model):

- Everywhere, unless said below: normal(0, 2) over ordinary pieces (whole characters: ASCII's printable ones
  and the line feed, "é", and longer pieces), four lower over all other bytes, so that at temperature 1 a
  few per cent of the tokens are stray bytes; the ends of generation have 1 % together, the other control
  tokens 0.3 %.
- Greedy: a seeded cycle through all ordinary pieces but those with a line below; each token outside the
  cycle leads into it. A greedy path so runs for more than a hundred tokens before it repeats, and never
  ends.
- Steps that leave all other tokens together about 1e-7:
  "!" -> end of text; "?" -> end of turn (`<|im_end|>`; in toy-spm the end of text); "#" -> `<|mark|>`;
  "*" -> F0 -> 9F -> 98 -> 80, an emoji in four tokens; "&" -> E6 -> 97 -> A5, "日" in three;
  "$" -> E2 -> 82 -> AC, "€" in three (toy-bpe: " \\xe2\\x82", which ends within a character, then AC);
  "^" -> C3, a first byte, with text behind it; "|" -> FF, which is never UTF-8.
- "@" -> " and": the most peaked row, all other tokens together 2e-9.
- "%": the uniform row, all logits 1.
- toy-spm only, where the piece "A" and the byte <0x41> print alike: after "=" the piece is the most likely
  and the byte second, after "~" the other way round.

No two values in a row are equal, but for the uniform row.
"""

import os
import sys
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import gguf
import numpy as np
from numpy.typing import NDArray

N_EMBD = 1024
"""A power of four, so that the norm's square root is a power of two; both vocabularies are smaller."""
N_HEAD = 32
"""Length of the head's keys and values and of the feed-forward layer; small, for a small cache."""
N_CONTEXT = 8192
EPSILON = 1e-12
F32 = gguf.GGMLQuantizationType.F32

EMOJI = "\U0001f600"
"""Four tokens in both models, as "日" is three."""

WORDS = (
    " the", " and", " of", " to", " in", " is", " my", " name", " you", " was", " it", " Hello", " once",
    " time", "Hello", "llo", "ing", "ed", "er", "\n\n", ".\n", "  ",
)  # fmt: skip
"""Pieces of several characters; their beginnings are pieces too, since both tokenizers join neighbours."""
CHARACTERS = "\n" + "".join(map(chr, range(0x20, 0x7F))) + "é"

STEPS: dict[str, tuple[int, ...]] = {
    "*": (0xF0, 0x9F, 0x98, 0x80),
    "&": (0xE6, 0x97, 0xA5),
    "$": (0xE2, 0x82, 0xAC),
    "^": (0xC3,),
    "|": (0xFF,),
}
"""Bytes that follow a piece, each with near certainty; they follow one another wherever they occur."""
ENDING, UNIFORM, PEAKED, MARKING, TURN, TWINS = "!", "%", "@", "#", "?", "=~"
STRUCTURAL = frozenset("".join(STEPS) + ENDING + UNIFORM + PEAKED + MARKING + TURN + TWINS)
SURE, PEAK = 16.0, 20.0
"""Logit above the log-sum-exp of the rest of its row, which keeps e**-16 = 1e-7 or e**-20 = 2e-9."""


class Fim(NamedTuple):
    """Ids of the fill-in-the-middle tokens, and of the token between files."""

    pre: int
    suf: int
    mid: int
    sep: int


@dataclass(frozen=True, eq=False)
class Toy:
    """A model, known in full: vocabulary, table (n_vocab, n_vocab), and how to write it."""

    name: str
    pieces: list[bytes]
    """What each token prints; empty for control tokens and `<unk>`."""
    names: list[str]
    """Each token as the vocabulary has it: `<s>`, `<0x41>`, `▁the` (toy-spm), `Ġthe` (toy-bpe)."""
    kinds: list[gguf.TokenType]
    table: NDArray[np.float32]
    bos: int | None
    """The token that the tokenizer puts first; None where it adds none (llama_vocab_bos then names `eos`)."""
    eos: int
    eog: frozenset[int]
    """Every token at which llama.cpp ends a generation: the file separator too, not the other FIM tokens."""
    mark: int
    """A control token that ends nothing."""
    fim: Fim | None
    add_space_prefix: bool
    merges: list[str]
    """Pairs that the byte-level tokenizer joins, first come first; none in toy-spm."""

    @property
    def n_vocab(self) -> int:
        return len(self.names)

    def id(self, name: str) -> int:
        """The token that the vocabulary calls `name`."""
        return self.names.index(name)

    def byte(self, value: int) -> int:
        """The token of one byte: `<0x41>` in toy-spm (not the piece "A"), the base token in toy-bpe."""
        return self.id(f"<0x{value:02X}>") if self.fim is None else value

    def piece(self, text: str | bytes) -> int:
        """The ordinary token (no byte token of toy-spm) that prints `text`."""
        data = text.encode() if isinstance(text, str) else text
        for token, (piece, kind) in enumerate(zip(self.pieces, self.kinds, strict=True)):
            if piece == data and kind == gguf.TokenType.NORMAL:
                return token
        raise KeyError(text)

    def printed(self, ids: Iterable[int]) -> bytes:
        """All that the tokens print."""
        return b"".join(self.pieces[token] for token in ids)

    @property
    def output(self) -> NDArray[np.float32]:
        """The output matrix, (n_vocab, N_EMBD): the table on its side."""
        output = np.zeros((self.n_vocab, N_EMBD), np.float32)
        output[:, : self.n_vocab] = self.table.T
        return output

    def log_probs(self, token: int) -> NDArray[np.float64]:
        """Log-softmax of row `token` in float64, (n_vocab,)."""
        row = self.table[token].astype(np.float64)
        top = row.max()
        out: NDArray[np.float64] = row - (top + np.log(np.exp(row - top).sum()))
        return out

    def greedy(self, prompt_ids: Sequence[int], n: int) -> list[int]:
        """Up to n tokens after the prompt, the end of generation included; ties go to the lowest id."""
        out: list[int] = []
        token = prompt_ids[-1]
        while len(out) < n:
            token = int(self.table[token].argmax())
            out.append(token)
            if token in self.eog:
                break
        return out

    def write(self, folder: Path, matrices: gguf.GGMLQuantizationType = F32) -> Path:
        """Writes `<name>.gguf` into the folder; a reader sees the whole file or none.

        matrices: the format of all that is multiplied; in any other than F32 the table is not exact.
        """
        folder.mkdir(parents=True, exist_ok=True)
        target = folder / f"{self.name}.gguf"
        handle, name = tempfile.mkstemp(prefix=f".{self.name}-", dir=folder)
        os.close(handle)
        temporary = Path(name)
        try:
            self._write(temporary, matrices)
            temporary.chmod(0o644)  # mkstemp's mode shuts other users out, a server in a container among them
            temporary.replace(target)
        finally:
            temporary.unlink(missing_ok=True)
        return target

    def _write(self, path: Path, matrices: gguf.GGMLQuantizationType) -> None:
        out = gguf.GGUFWriter(path, "llama")
        out.add_name(self.name)
        out.add_file_type(gguf.LlamaFileType.ALL_F32)
        out.add_context_length(N_CONTEXT)
        out.add_embedding_length(N_EMBD)
        out.add_block_count(1)
        out.add_feed_forward_length(N_HEAD)
        out.add_head_count(1)
        out.add_head_count_kv(1)
        out.add_key_length(N_HEAD)
        out.add_value_length(N_HEAD)
        out.add_rope_dimension_count(N_HEAD)
        out.add_layer_norm_rms_eps(EPSILON)
        out.add_vocab_size(self.n_vocab)
        self._write_tokenizer(out)

        def matrix(name: str, numbers: NDArray[np.float32]) -> None:
            out.add_tensor(name, gguf.quants.quantize(numbers, matrices), raw_dtype=matrices)

        def zeros(name: str, rows: int, columns: int) -> None:
            matrix(name, np.zeros((rows, columns), np.float32))

        matrix("token_embd.weight", np.eye(self.n_vocab, N_EMBD, dtype=np.float32))
        matrix("output.weight", self.output)
        out.add_tensor("output_norm.weight", np.full(N_EMBD, 1 / 32, np.float32))
        out.add_tensor("blk.0.attn_norm.weight", np.ones(N_EMBD, np.float32))
        out.add_tensor("blk.0.ffn_norm.weight", np.ones(N_EMBD, np.float32))
        for name in ("attn_q", "attn_k", "attn_v", "ffn_gate", "ffn_up"):
            zeros(f"blk.0.{name}.weight", N_HEAD, N_EMBD)
        for name in ("attn_output", "ffn_down"):
            zeros(f"blk.0.{name}.weight", N_EMBD, N_HEAD)
        out.write_header_to_file()
        out.write_kv_data_to_file()
        out.write_tensors_to_file()
        out.close()

    def _write_tokenizer(self, out: gguf.GGUFWriter) -> None:
        out.add_token_list(self.names)
        out.add_token_types(self.kinds)
        out.add_eos_token_id(self.eos)
        # A byte-level file without the key gets token 11 as its BOS: name one even where it is not added.
        out.add_bos_token_id(self.eos if self.bos is None else self.bos)
        out.add_add_bos_token(self.bos is not None)
        if self.fim is None:
            out.add_tokenizer_model("llama")
            # The earlier of two possible joins wins; single characters and bytes join nothing.
            out.add_token_scores([-float(token) for token in range(self.n_vocab)])
            out.add_unk_token_id(self.id("<unk>"))
            out.add_add_space_prefix(self.add_space_prefix)
        else:
            out.add_tokenizer_model("gpt2")
            out.add_tokenizer_pre("qwen2")
            out.add_token_merges(self.merges)
            out.add_eot_token_id(self.id("<|im_end|>"))
            out.add_uint32(gguf.Keys.Tokenizer.FIM_PRE_ID, self.fim.pre)
            out.add_uint32(gguf.Keys.Tokenizer.FIM_SUF_ID, self.fim.suf)
            out.add_uint32(gguf.Keys.Tokenizer.FIM_MID_ID, self.fim.mid)
            out.add_uint32(gguf.Keys.Tokenizer.FIM_SEP_ID, self.fim.sep)


def _with_beginnings(words: Iterable[str]) -> list[str]:
    """The words of two and more characters, each after its own beginnings of two and more; none twice."""
    return list(dict.fromkeys(word[:end] for word in words for end in range(2, len(word) + 1)))


def _whole(data: bytes) -> bool:
    """Whether the bytes are UTF-8 by themselves."""
    return "\ufffd" not in data.decode(errors="replace")


def _log_sum_exp(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    """Log-sum-exp of each row, (rows,)."""
    out: NDArray[np.float64] = np.log(np.exp(rows).sum(axis=-1))  # logits here stay far below float64's limit
    return out


def _table(toy: Toy, seed: int, sure: dict[int, int]) -> NDArray[np.float32]:
    """The table, (n_vocab, n_vocab), of a toy that has none yet; `sure` maps tokens to their successors."""
    rng = np.random.default_rng(seed)
    n = toy.n_vocab
    control = np.array([kind in (gguf.TokenType.CONTROL, gguf.TokenType.UNKNOWN) for kind in toy.kinds])
    printable = {character.encode() for character in CHARACTERS}
    plain = np.array([
        kind == gguf.TokenType.NORMAL and (piece in printable or (len(piece) > 1 and _whole(piece)))
        for piece, kind in zip(toy.pieces, toy.kinds, strict=True)
    ])  # fmt: skip
    structural = {toy.piece(text) for text in STRUCTURAL}

    logits = rng.normal(0, 2, (n, n))
    logits[:, ~plain] -= 4
    for text in ("*", "&"):  # so that characters of several tokens come up often enough at temperature 1
        logits[:, sure[toy.piece(text)]] += 4
    for text in (ENDING, TURN):
        logits[:, toy.piece(text)] -= 1
    rest = ~control

    cycle = [token for token in range(n) if plain[token] and token not in structural]
    cycle = [cycle[i] for i in rng.permutation(len(cycle))]
    successor = {token: cycle[int(i)] for token, i in enumerate(rng.integers(len(cycle), size=n))}
    successor |= dict(zip(cycle, cycle[1:] + cycle[:1], strict=True))
    margin = rng.uniform(0.5, 1.5, n)
    for token, after in successor.items():
        logits[token, after] = logits[token, rest].max() + margin[token]
    if toy.fim is None:
        twins = toy.piece("A"), toy.byte(0x41)
        for text, (first, second) in zip(TWINS, (twins, twins[::-1]), strict=True):
            top = logits[toy.piece(text), rest].max()
            logits[toy.piece(text), first] = top + 2
            logits[toy.piece(text), second] = top + 1

    total = _log_sum_exp(logits[:, rest])[:, None]
    noise = rng.uniform(-0.2, 0.2, (n, n))
    ends = sorted(toy.eog)
    others = [token for token in range(n) if control[token] and token not in toy.eog]
    logits[:, others] = total + np.log(0.003 / len(others)) + noise[:, others]
    logits[:, ends] = total + np.log(0.01 / len(ends)) + noise[:, ends]

    for token, after in sure.items():
        gap = PEAK if token == toy.piece(PEAKED) else SURE
        logits[token, after] = _log_sum_exp(np.delete(logits[token], after)) + gap

    # Onto float16's grid, and apart: each value at least one step of the grid above the next smaller one.
    half = logits.astype(np.float16)
    order = np.argsort(half, axis=1, kind="stable")
    ranked = np.take_along_axis(half, order, axis=1)
    for i in range(1, n):
        ranked[:, i] = np.maximum(ranked[:, i], np.nextafter(ranked[:, i - 1], np.float16(np.inf)))
    np.put_along_axis(half, order, ranked, axis=1)
    half[toy.piece(UNIFORM)] = 1
    table = half.astype(np.float32)
    table.setflags(write=False)
    return table


def _finished(toy: Toy, seed: int, sure: dict[int, int]) -> Toy:
    """The toy with its table; `sure` has the steps of this model alone, and wins over the common ones."""
    steps: dict[int, int] = {}
    for text, values in STEPS.items():
        path = [toy.piece(text), *map(toy.byte, values)]
        steps |= dict(pairwise(path))
    ends = {ENDING: toy.eos, MARKING: toy.mark, PEAKED: toy.piece(" and")}
    steps |= {toy.piece(text): token for text, token in ends.items()} | sure
    return replace(toy, table=_table(toy, seed, steps))


@cache
def spm() -> Toy:
    """toy-spm: SentencePiece with byte tokens, BOS added, a space put before a text, no FIM tokens."""
    special, bytes_ = ["<unk>", "<s>", "</s>"], range(256)
    texts = _with_beginnings(WORDS) + list(CHARACTERS)
    names = [*special, *(f"<0x{value:02X}>" for value in bytes_)]
    names += [*(text.replace(" ", "▁") for text in texts), "<|mark|>"]
    kind = gguf.TokenType
    kinds = [kind.UNKNOWN, kind.CONTROL, kind.CONTROL, *[kind.BYTE] * 256, *[kind.NORMAL] * len(texts)]
    toy = Toy(
        name="toy-spm",
        pieces=[b""] * 3 + [bytes([value]) for value in bytes_] + [text.encode() for text in texts] + [b""],
        names=names,
        kinds=[*kinds, kind.CONTROL],
        table=np.empty((0, 0), np.float32),
        bos=1,
        eos=2,
        eog=frozenset({2}),
        mark=len(names) - 1,
        fim=None,
        add_space_prefix=True,
        merges=[],
    )
    return _finished(toy, 20230, {toy.piece(TURN): toy.eos})


def _byte_letters() -> list[str]:
    """GPT-2's alphabet: the letter that stands for each byte, its own where that is printable Latin-1."""
    own = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    spare = iter(range(0x100, 0x200))
    return [chr(value if value in own else next(spare)) for value in range(256)]


@cache
def bpe() -> Toy:
    """toy-bpe: byte-level, no BOS, FIM tokens, three ends of generation; the token of byte b is b."""
    letters = _byte_letters()

    def spelled(data: bytes) -> str:
        return "".join(letters[value] for value in data)

    # The last two: "é" whole, and a token that ends within a character.
    joined = [text.encode() for text in _with_beginnings(WORDS)] + ["é".encode(), b" \xe2", b" \xe2\x82"]
    known = {*joined, *(bytes([value]) for value in range(256))}
    merges = [
        f"{spelled(data[:cut])} {spelled(data[cut:])}"
        for data in joined
        for cut in range(len(data) - 1, 0, -1)  # every way to it, so that no word's joins block another's
        if data[:cut] in known and data[cut:] in known
    ]
    special = [
        "<|endoftext|>", "<|im_end|>", "<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", "<|file_sep|>",
        "<|mark|>",
    ]  # fmt: skip
    ordinary = [bytes([value]) for value in range(256)] + joined
    end, turn, pre, suf, mid, sep, mark = range(len(ordinary), len(ordinary) + len(special))
    toy = Toy(
        name="toy-bpe",
        pieces=ordinary + [b""] * len(special),
        names=[spelled(data) for data in ordinary] + special,
        kinds=[gguf.TokenType.NORMAL] * len(ordinary) + [gguf.TokenType.CONTROL] * len(special),
        table=np.empty((0, 0), np.float32),
        bos=None,
        eos=end,
        eog=frozenset({end, turn, sep}),
        mark=mark,
        fim=Fim(pre, suf, mid, sep),
        add_space_prefix=False,
        merges=merges,
    )
    start, most = toy.piece(b" \xe2"), toy.piece(b" \xe2\x82")
    steps = {toy.piece(TURN): turn, toy.piece("$"): most, most: toy.byte(0xAC), start: toy.byte(0x82)}
    return _finished(toy, 20231, steps)


def write_all(folder: Path) -> list[Path]:
    """Writes both models; the paths of toy-spm and toy-bpe."""
    return [toy.write(folder) for toy in (spm(), bpe())]


def main(argv: Sequence[str]) -> int:
    """Writes both models into the folder named, models/toy by default."""
    if len(argv) > 1 or any(word.startswith("-") for word in argv):
        print("usage: make_toy_models [DIR]", file=sys.stderr)
        return 2
    for path in write_all(Path(argv[0] if argv else "models/toy")):
        print(f"{path} ({path.stat().st_size:,} bytes)")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

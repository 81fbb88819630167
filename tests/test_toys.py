"""The toy models are exact in llama.cpp itself: tokenizers, special ids, every row of logits bit for bit."""

import ctypes
import math
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np
import pytest
from numpy.typing import NDArray

from tests import toys
from tests.toys import Toy

LLAMA: Any = llama_cpp
BATCH = 512


class Loaded:
    """A toy model in llama.cpp, with one context of 32 sequences that share its cells."""

    def __init__(self, toy: Toy, path: Path) -> None:
        self.toy = toy
        model_params = LLAMA.llama_model_default_params()
        self.model = LLAMA.llama_model_load_from_file(str(path).encode(), model_params)
        assert self.model is not None
        self.vocab = LLAMA.llama_model_get_vocab(self.model)
        params = LLAMA.llama_context_default_params()
        params.n_ctx = 4096
        params.n_batch = params.n_ubatch = BATCH
        params.n_seq_max = 32
        params.kv_unified = True
        params.n_threads = params.n_threads_batch = 1  # more of them would wait for one another
        self.context = LLAMA.llama_init_from_model(self.model, params)
        assert self.context is not None
        self.batch = LLAMA.llama_batch_init(BATCH, 0, 1)

    def close(self) -> None:
        LLAMA.llama_batch_free(self.batch)
        LLAMA.llama_free(self.context)
        LLAMA.llama_model_free(self.model)

    def clear(self) -> None:
        LLAMA.llama_memory_clear(LLAMA.llama_get_memory(self.context), True)

    def decode(self, tokens: list[tuple[int, int, int]]) -> NDArray[np.float32]:
        """Logits, (tokens, n_vocab), of a batch of (token, sequence, position)."""
        self.batch.n_tokens = len(tokens)
        for i, (token, sequence, position) in enumerate(tokens):
            self.batch.token[i] = token
            self.batch.pos[i] = position
            self.batch.n_seq_id[i] = 1
            self.batch.seq_id[i][0] = sequence
            self.batch.logits[i] = 1
        assert LLAMA.llama_decode(self.context, self.batch) == 0
        rows = [LLAMA.llama_get_logits_ith(self.context, i) for i in range(len(tokens))]
        return np.array([np.ctypeslib.as_array(row, (self.toy.n_vocab,)) for row in rows])

    def tokens(self, text: str, add_special: bool = False, parse_special: bool = True) -> list[int]:
        data = text.encode()
        out = (ctypes.c_int32 * (len(data) + 8))()
        n = LLAMA.llama_tokenize(self.vocab, data, len(data), out, len(out), add_special, parse_special)
        return list(out[:n])

    def printed(self, token: int, special: bool) -> bytes:
        out = ctypes.create_string_buffer(64)
        n = LLAMA.llama_token_to_piece(self.vocab, token, out, len(out), 0, special)
        return out.raw[:n]


@pytest.fixture(scope="module", autouse=True)
def _silence() -> Iterator[None]:
    """Keeps llama.cpp's log off the test's output; puts back what took it before."""
    before, data = LLAMA.llama_log_callback(), ctypes.c_void_p()
    LLAMA.llama_log_get(ctypes.byref(before), ctypes.byref(data))

    swallow = LLAMA.llama_log_callback(lambda level, text, user_data: None)
    LLAMA.llama_log_set(swallow, ctypes.c_void_p())
    yield
    LLAMA.llama_log_set(before, data)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("toys")
    assert toys.main([str(path)]) == 0
    return path


@pytest.fixture(scope="module", params=[toys.spm, toys.bpe], ids=["spm", "bpe"])
def loaded(request: pytest.FixtureRequest, folder: Path, _silence: None) -> Iterator[Loaded]:
    toy: Toy = request.param()
    model = Loaded(toy, folder / f"{toy.name}.gguf")
    yield model
    model.close()


def same_bits(got: NDArray[np.float32], wanted: NDArray[np.float32]) -> bool:
    return got.dtype == wanted.dtype == np.float32 and got.tobytes() == np.ascontiguousarray(wanted).tobytes()


def test_special_ids(loaded: Loaded) -> None:
    toy, vocab = loaded.toy, loaded.vocab
    assert LLAMA.llama_vocab_n_tokens(vocab) == toy.n_vocab == len(toy.pieces) == len(toy.kinds) < toys.N_EMBD
    assert LLAMA.llama_model_n_ctx_train(loaded.model) == toys.N_CONTEXT
    assert LLAMA.llama_vocab_get_add_bos(vocab) == (toy.bos is not None)
    assert LLAMA.llama_vocab_bos(vocab) == (toy.eos if toy.bos is None else toy.bos)
    assert LLAMA.llama_vocab_eos(vocab) == toy.eos
    assert not LLAMA.llama_vocab_get_add_eos(vocab)
    assert {token for token in range(toy.n_vocab) if LLAMA.llama_vocab_is_eog(vocab, token)} == toy.eog
    assert LLAMA.llama_vocab_is_control(vocab, toy.mark)
    assert toy.mark not in toy.eog
    pre, suf, mid, sep = toy.fim or (-1, -1, -1, -1)
    assert LLAMA.llama_vocab_fim_pre(vocab) == pre
    assert LLAMA.llama_vocab_fim_suf(vocab) == suf
    assert LLAMA.llama_vocab_fim_mid(vocab) == mid
    assert LLAMA.llama_vocab_fim_sep(vocab) == sep
    assert LLAMA.llama_vocab_eot(vocab) == (toy.id("<|im_end|>") if toy.fim else -1)


def test_pieces_and_names(loaded: Loaded) -> None:
    toy = loaded.toy
    for token in range(toy.n_vocab):
        assert LLAMA.llama_vocab_get_text(loaded.vocab, token).decode() == toy.names[token]
        assert loaded.printed(token, special=False) == toy.pieces[token]
        assert loaded.printed(token, special=True) == (toy.pieces[token] or toy.names[token].encode())
    assert [toy.pieces[toy.byte(value)] for value in range(256)] == [bytes([value]) for value in range(256)]
    assert (toy.byte(0x41) != toy.piece("A")) == (toy.fim is None)


def test_tokenizer(loaded: Loaded) -> None:
    toy = loaded.toy
    space = b" " if toy.add_space_prefix else b""
    for text in (
        "Hello, my name is",
        "Once upon a time, in 1999: it was (mostly) the end.\n\nCafé\ttable, 日本 \U0001f600!",
        "".join(toys.CHARACTERS),
    ):
        ids = loaded.tokens(text)
        assert toy.printed(ids) == space + text.encode()
        start = [] if toy.bos is None else [toy.bos]
        assert loaded.tokens(text, add_special=True) == start + ids

    hello = " Hello" if toy.add_space_prefix else "Hello"
    words = [hello, ",", " my", " name", " is"]
    assert loaded.tokens("Hello, my name is") == [toy.piece(word) for word in words]
    for character in (toys.EMOJI, "日"):
        ids = [toy.byte(value) for value in character.encode()]
        assert loaded.tokens("a" + character)[-len(ids) :] == ids
        assert len(loaded.tokens("a" + character)) == len(ids) + 1
    assert all(loaded.tokens("a" + word)[1:] == [toy.piece(word)] for word in toys.WORDS if word[0] in " \n.")


def test_special_tokens_in_text(loaded: Loaded) -> None:
    toy = loaded.toy
    for token in [toy.eos, toy.mark, *toy.eog, *(toy.fim or ())]:
        name = toy.names[token]
        assert loaded.tokens(name) == [token]
        assert toy.printed(loaded.tokens(name, parse_special=False)).strip() == name.encode()


def test_logits_are_the_table_bit_for_bit(loaded: Loaded) -> None:
    """Each token alone in its decode, and all of them as one sequence in batches."""
    toy = loaded.toy
    loaded.clear()
    for token in range(toy.n_vocab):
        assert same_bits(loaded.decode([(token, 0, token)]), toy.table[token : token + 1])
    ids = [int(token) for token in np.random.default_rng(1).permutation(toy.n_vocab)]
    loaded.clear()
    got = loaded.decode([(token, 0, position) for position, token in enumerate(ids)])
    assert same_bits(got, toy.table[ids])


def test_logits_in_a_crowd(loaded: Loaded) -> None:
    """Sequences of several lengths side by side, in batches of 1 to 32, with one thread and two."""
    toy, rng = loaded.toy, np.random.default_rng(2)
    loaded.clear()
    length = [0] * 32
    for i, n in enumerate((1, 2, 3, 7, 16, 32, 5, 32, 31)):
        LLAMA.llama_set_n_threads(loaded.context, 1 + i % 2, 1 + i % 2)
        batch = []
        for sequence in rng.permutation(32)[:n]:
            for _ in range(int(rng.integers(1, 16))):
                batch.append((int(rng.integers(toy.n_vocab)), int(sequence), length[sequence]))
                length[sequence] += 1
        assert same_bits(loaded.decode(batch), toy.table[[token for token, _, _ in batch]])
    LLAMA.llama_set_n_threads(loaded.context, 1, 1)


def test_greedy_in_llama(loaded: Loaded) -> None:
    toy = loaded.toy
    loaded.clear()
    prompt = loaded.tokens("Hello, my name is", add_special=True)
    out: list[int] = []
    rows = loaded.decode([(token, 0, position) for position, token in enumerate(prompt)])
    for position in range(len(prompt), len(prompt) + 60):
        out.append(int(rows[-1].argmax()))
        rows = loaded.decode([(out[-1], 0, position)])
    assert out == toy.greedy(prompt, 60)


@pytest.mark.parametrize("make", [toys.spm, toys.bpe])
class TestTable:
    def test_ties_only_on_the_uniform_row(self, make: Any) -> None:
        toy: Toy = make()
        uniform = toy.piece(toys.UNIFORM)
        for token, row in enumerate(toy.table):
            assert len(np.unique(row)) == (1 if token == uniform else toy.n_vocab)
        assert np.allclose(toy.log_probs(uniform), -math.log(toy.n_vocab), atol=1e-12)
        assert same_bits(toy.table, toy.table.astype(np.float16).astype(np.float32))

    def test_greedy_paths_are_long_and_varied(self, make: Any) -> None:
        toy: Toy = make()
        for word in (" is", "Hello", "é", "\n", " "):
            path = toy.greedy([toy.piece(word)], 100)
            assert len(path) == len(set(path)) == 100
            assert "\ufffd" not in toy.printed(path).decode(errors="replace")
        for start in range(toy.n_vocab):
            ends = start in {toy.piece(toys.ENDING), toy.piece(toys.TURN)}
            assert (len(toy.greedy([start], 200)) == 1) == ends

    def test_sure_steps(self, make: Any) -> None:
        toy: Toy = make()

        def after(text: str, n: int) -> list[int]:
            path = [toy.piece(text), *toy.greedy([toy.piece(text)], n)]
            assert all(toy.log_probs(token)[then] > -1e-6 for token, then in pairwise(path))
            return path[1:]

        assert toy.printed(after("*", 4)) == toys.EMOJI.encode()
        assert toy.printed(after("&", 3)) == "日".encode()
        assert toy.printed(after("$", 3 if toy.fim is None else 2)).strip() == "€".encode()
        assert (after("^", 1), after("|", 1)) == ([toy.byte(0xC3)], [toy.byte(0xFF)])
        assert after("#", 1) == [toy.mark]
        assert after("!", 1) == [toy.eos]
        assert after("?", 1) == [toy.id("<|im_end|>") if toy.fim else toy.eos]
        assert after("@", 1) == [toy.piece(" and")]
        assert toy.log_probs(toy.piece("@")).max() > -1e-8

    def test_ends_and_bytes_are_modest(self, make: Any) -> None:
        """On the rows of ordinary text: about 1 % ends, 1 to 10 % stray bytes, no token too sure."""
        toy: Toy = make()
        rows = [token for token in toy.greedy([toy.piece(" is")], 100) if toy.pieces[token].isalnum()]
        probs = np.exp([toy.log_probs(token) for token in rows])
        ends = probs[:, sorted(toy.eog)].sum(axis=1)
        assert ends.min() > 0.005
        assert ends.max() < 0.015
        stray = [toy.byte(value) for value in range(128, 256)]
        assert 0.01 < probs[:, stray].sum(axis=1).mean() < 0.1
        assert 0.1 < np.median(probs.max(axis=1)) < 0.7
        if toy.fim is None:
            twins = [toy.piece("A"), toy.byte(0x41)]
            assert np.argsort(toy.table[toy.piece("=")])[-2:].tolist() == twins[::-1]
            assert np.argsort(toy.table[toy.piece("~")])[-2:].tolist() == twins


def test_writing_again_is_the_same_file(folder: Path, tmp_path: Path) -> None:
    for path in toys.write_all(tmp_path):
        assert path.read_bytes() == (folder / path.name).read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["toy-bpe.gguf", "toy-spm.gguf"]

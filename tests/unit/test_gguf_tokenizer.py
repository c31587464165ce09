"""Tokenizers out of GGUF metadata: the same ids as the plain algorithm, the same text back."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer

from sssd.errors import ExportError, UnsupportedModel
from sssd.export.gguf_reader import GgufFile
from sssd.export.gguf_tokenizer import read_gguf_text
from sssd.export.model_text import ModelText
from tests.helpers.tiny_gguf import tokenizer_model
from tests.helpers.tiny_models import tiny_tokenizer

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, BYTE = 1, 2, 3, 4, 6
BYTES = [f"<0x{i:02X}>" for i in range(256)]


def text_of(**fields: object) -> ModelText:
    metadata = {f"tokenizer.{'' if k == 'chat_template' else 'ggml.'}{k}": v for k, v in fields.items()}
    return read_gguf_text(GgufFile(Path("a.gguf"), metadata, {}))


def byte_level(**fields: object) -> ModelText:
    model = tokenizer_model(tiny_tokenizer())
    tokens = [*model["vocab"], "<|im_end|>", "<tool>"]
    types = [CONTROL] * 2 + [NORMAL] * (len(tokens) - 4) + [CONTROL, USER_DEFINED]
    plain = {"model": "gpt2", "pre": "gpt-2", "tokens": tokens, "token_type": types, "eos_token_id": 1}
    return text_of(**(plain | {"merges": [" ".join(m) for m in model["merges"]]} | fields))


def pieces_of(pre: str, text: str) -> list[str]:
    tokenizer = Tokenizer.from_str(byte_level(pre=pre).tokenizer_json)
    return [text[a:b] for _, (a, b) in tokenizer.pre_tokenizer.pre_tokenize_str(text)]


# ---- byte-level BPE ----------------------------------------------------------------------------


def test_byte_level_ids_are_those_of_the_tokenizer_it_was_made_from() -> None:
    ours, theirs = Tokenizer.from_str(byte_level().tokenizer_json), tiny_tokenizer()
    for text in ("the quick brown fox", " jumps  over the lazy", "thethe dog"):
        assert ours.encode(text).ids == theirs.encode(text).ids
        assert ours.decode(ours.encode(text).ids) == text


def test_control_tokens_are_matched_whole_and_are_special() -> None:
    tokenizer = Tokenizer.from_str(byte_level().tokenizer_json)
    tokens = tokenizer.encode("the<|im_end|>fox<tool>dog").tokens
    assert "<|im_end|>" in tokens
    assert "<tool>" in tokens
    assert tokenizer.decode(tokenizer.encode("the<|im_end|>fox<tool>").ids) == "thefox<tool>"


def test_the_end_of_a_turn_ends_a_text_even_when_the_file_does_not_say_so() -> None:
    text = byte_level()
    n = len(tokenizer_model(tiny_tokenizer())["vocab"])
    assert text.eos_ids == (1, n)
    assert byte_level(eos_token_id=n, eot_token_id=0).eos_ids == (n, 0)


@pytest.mark.parametrize(
    ("pre", "text", "pieces"),
    [
        ("gpt-2", "it's 1234  ok\n", ["it", "'s", " 1234", " ", " ok", "\n"]),
        ("smollm", "it's 1234  ok\n", ["it", "'s", " ", "1", "2", "3", "4", " ", " ok", "\n"]),
        ("llama-bpe", "It'S 1234  ok!\n\n", ["It", "'S", " ", "123", "4", " ", " ok", "!\n\n"]),
        ("qwen2", "It'S 1234  ok!\n\n", ["It", "'S", " ", "1", "2", "3", "4", " ", " ok", "!\n\n"]),
        ("default", "a+b 12345", ["a", "+", "b", " ", "123", "45"]),
        ("gpt-4o", "helloWorld's 1234", ["hello", "World's", " ", "123", "4"]),
        ("tekken", "helloWorld 12", ["hello", "World", " ", "1", "2"]),
    ],
)
def test_pre_tokenizers_cut_text_as_their_pattern_says(pre: str, text: str, pieces: list[str]) -> None:
    assert pieces_of(pre, text) == pieces


def test_qwen2_composes_characters_first() -> None:
    assert Tokenizer.from_str(byte_level(pre="qwen2").tokenizer_json).normalizer.normalize_str("e\u0301") == "\u00e9"


def test_llama_bpe_takes_whole_tokens_before_merging() -> None:
    n = len(tokenizer_model(tiny_tokenizer())["vocab"]) + 2
    vocabulary = [*tokenizer_model(tiny_tokenizer())["vocab"], "<|im_end|>", "<tool>", "ztz"]
    types = [NORMAL] * len(vocabulary)
    ids = {
        p: Tokenizer.from_str(byte_level(pre=p, tokens=vocabulary, token_type=types).tokenizer_json)
        for p in ("llama-bpe", "dbrx")
    }
    assert ids["llama-bpe"].encode("ztz").ids == [n]
    assert n not in ids["dbrx"].encode("ztz").ids


def test_beginnings_and_ends_are_added_where_the_file_asks_for_them() -> None:
    def ids(**fields: object) -> list[int]:
        return Tokenizer.from_str(byte_level(**fields).tokenizer_json).encode("the").ids

    plain = ids()
    assert ids(bos_token_id=0) == plain
    assert ids(bos_token_id=0, add_bos_token=True) == [0, *plain]
    assert ids(bos_token_id=0, add_bos_token=True, add_eos_token=True) == [0, *plain, 1]
    assert ids(pre="llama-bpe", bos_token_id=0)[0] == ids(pre="tekken", bos_token_id=0)[0] == 0
    assert ids(pre="llama-bpe", bos_token_id=0, add_bos_token=False)[0] != 0


# ---- SentencePiece -----------------------------------------------------------------------------


def sentencepiece(pieces: dict[str, float], **fields: object) -> ModelText:
    tokens = ["<unk>", "<s>", "</s>", *BYTES, *pieces]
    types = [UNKNOWN, CONTROL, CONTROL] + [BYTE] * 256 + [NORMAL] * len(pieces)
    scores = [0.0] * 259 + list(pieces.values())
    plain = {"model": "llama", "tokens": tokens, "token_type": types, "scores": scores}
    return text_of(**(plain | {"bos_token_id": 1, "eos_token_id": 2} | fields))


def join_best(text: str, pieces: dict[str, float]) -> list[str]:
    """The plain slow twin: join the best-scored adjacent pair, the leftmost of equals, until none is left."""
    symbols = list(text)
    while True:
        pairs = [(-pieces[a + b], i) for i, (a, b) in enumerate(pairwise(symbols)) if a + b in pieces]
        if not pairs:
            return [s for symbol in symbols for s in ([symbol] if symbol in pieces else as_bytes(symbol))]
        _, i = min(pairs)
        symbols[i : i + 2] = [symbols[i] + symbols[i + 1]]


def as_bytes(symbol: str) -> list[str]:
    return [f"<0x{b:02X}>" for b in symbol.encode()]


@pytest.mark.parametrize("seed", range(20))
def test_sentencepiece_ids_are_those_of_the_plain_algorithm(seed: int) -> None:
    rng = np.random.default_rng(seed)
    letters = list("abcdefg\u2581")
    # Pieces of distinct letters cannot overlap themselves: no ties that BPE ranks cannot express.
    found = {"".join(rng.permutation(letters)[: rng.integers(2, 6)]) for _ in range(150)}
    pieces = {p: float(-i) for i, p in enumerate([*letters, *sorted(found)])}
    tokenizer = Tokenizer.from_str(sentencepiece(pieces).tokenizer_json)
    for _ in range(20):
        text = "".join(rng.choice([*letters[:-1], " ", "é"], size=rng.integers(1, 30)))
        expected = join_best("\u2581" + text.replace(" ", "\u2581"), pieces)
        assert tokenizer.encode(text).tokens == ["<s>", *expected]
        assert tokenizer.decode(tokenizer.encode(text).ids) == text


def test_a_space_is_prefixed_only_where_the_file_asks_for_it() -> None:
    pieces = {"\u2581": -1.0, "a": -2.0}
    assert Tokenizer.from_str(sentencepiece(pieces).tokenizer_json).encode("a a").tokens[1:] == [
        "\u2581",
        "a",
        "\u2581",
        "a",
    ]
    bare = Tokenizer.from_str(sentencepiece(pieces, add_space_prefix=False).tokenizer_json)
    assert bare.encode("a a").tokens[1:] == ["a", "\u2581", "a"]
    assert bare.decode(bare.encode(" a a").ids) == " a a"


def test_runs_of_spaces_defined_as_tokens_are_matched_in_text() -> None:
    pieces = {"\u2581": -1.0, "a": -2.0, "\u2581\u2581\u2581": 0.0}
    types = [UNKNOWN, CONTROL, CONTROL] + [BYTE] * 256 + [NORMAL, NORMAL, USER_DEFINED]
    text = sentencepiece(pieces, add_space_prefix=False, token_type=types)
    tokenizer = Tokenizer.from_str(text.tokenizer_json)
    assert tokenizer.encode("a   a").tokens[1:] == ["a", "\u2581\u2581\u2581", "a"]
    assert tokenizer.decode(tokenizer.encode("a   a").ids) == "a   a"


def test_text_that_spells_a_byte_token_does_not_become_it() -> None:
    pieces = dict.fromkeys("<0xA>", -1.0) | {"<0": -2.0, "<0x": -3.0, "<0x0": -4.0, "<0x0A": -5.0}
    tokens = Tokenizer.from_str(sentencepiece(pieces).tokenizer_json).encode("<0x0A>").tokens
    assert "<0x0A>" not in tokens


# ---- bad input ---------------------------------------------------------------------------------


def test_unknown_tokenizers_and_pre_tokenizers_list_the_supported_ones() -> None:
    with pytest.raises(UnsupportedModel, match="tokenizer 'bert' is not supported, only gpt2, llama"):
        text_of(model="bert")
    with pytest.raises(
        UnsupportedModel, match=r"pre-tokenizer 'tibetan' is not supported, only .*llama-bpe.*qwen2.*smollm"
    ):
        byte_level(pre="tibetan")


@pytest.mark.parametrize(
    ("fields", "part"),
    [
        ({"tokens": ["a", "b", "a"], "token_type": [1, 1, 1]}, "stand twice in the vocabulary: 'a'"),
        ({"token_type": [1, 1]}, "2 token types for"),
        ({"merges": ["q zz"]}, "the merge 'q zz' joins pieces"),
        ({"merges": ["t"]}, "the merge 't' joins pieces"),
        ({"bos_token_id": 900, "add_bos_token": True}, "bos_token_id is 900"),
        ({"tokens": None}, "lacks ggml.tokens"),
    ],
)
def test_metadata_that_does_not_fit_together_is_refused(fields: dict[str, object], part: str) -> None:
    with pytest.raises(ExportError, match=part):
        byte_level(**fields)


def test_sentencepiece_needs_a_score_a_token() -> None:
    with pytest.raises(ExportError, match="1 scores for 260 tokens"):
        sentencepiece({"a": 0.0}, scores=[0.0])

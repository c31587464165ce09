"""A small vocabulary with tokens of many bytes, and random constraints over it."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import numpy as np
from tokenizers import Tokenizer as Core
from tokenizers import decoders, models, pre_tokenizers, trainers

from sssd.constraint import Constraint
from sssd.grammar import Grammars

EOS = (0, 1)  # a model may have several ending tokens
_WORDS = ["name", "names", "age", "city", "kind", "true", "false", "null", "yes", "yes, certainly", "no", "x1", "ünï"]


@cache
def core() -> Core:
    """A byte-level BPE of 420 tokens, two of them ending ones, three of them used by no text."""
    made = Core(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    text = [json.dumps({w: w, "in": {"age": 3, w: [w, 12.5]}}, ensure_ascii=False) + f" {w} 123-456" for w in _WORDS]
    trainer = trainers.BpeTrainer(
        vocab_size=417,
        special_tokens=["<end>", "<turn>", "<tool_call>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator(text * 3, trainer)
    return made


def vocab_size() -> int:
    """The model's: a little more than the tokenizer's, as many have it."""
    return core().get_vocab_size() + 3


@cache
def grammars() -> Grammars:
    return Grammars(core().to_str(), vocab_size=vocab_size(), eos_ids=EOS)


def ids(text: str) -> list[int]:
    return list(core().encode(text, add_special_tokens=False).ids)


def text(tokens: list[int]) -> str:
    return str(core().decode([t for t in tokens if t not in EOS]))


def random_schema(rng: np.random.Generator, depth: int = 2) -> dict[str, Any]:
    kinds = ["string", "integer", "boolean", "enum", *(["object", "array"] if depth else [])]
    kind = str(rng.choice(kinds))
    if kind == "enum":
        return {"enum": rng.choice(_WORDS, 3, replace=False).tolist()}
    if kind == "string":
        return {"type": "string", "maxLength": int(rng.integers(1, 6))}
    if kind == "array":
        return {"type": "array", "items": random_schema(rng, depth - 1), "maxItems": 3}
    if kind == "object":
        return random_object(rng, depth)
    return {"type": kind}


def random_object(rng: np.random.Generator, depth: int = 2) -> dict[str, Any]:
    names = rng.choice(_WORDS, 3, replace=False).tolist()
    return {
        "type": "object",
        "properties": {n: random_schema(rng, depth - 1) for n in names},
        "required": names[: int(rng.integers(0, 4))],
        "additionalProperties": False,
    }


def random_constraint(rng: np.random.Generator) -> Constraint:
    kind = int(rng.integers(5))
    if kind < 2:
        return Constraint.json_schema(random_object(rng))
    if kind == 2:
        return Constraint.choice(rng.choice(_WORDS, 4, replace=False).tolist())
    word, other = rng.choice(_WORDS, 2, replace=False)
    if kind == 3:
        return Constraint.regex(f"({word}|{other}[0-9]{{1,3}}|[a-c]+)(-{word}){{0,2}}\\.?")
    return Constraint.lark(f'start: pair+ "."\npair: "(" pair* ")" | "{word}" | /[0-9]+/ "{other}"')

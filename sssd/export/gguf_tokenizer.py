"""A tokenizer.json out of GGUF metadata, with its chat template and the ids that begin and end a text.

Owns the mapping from `tokenizer.ggml.*` to the tokenizers library; knows no model. Byte-level BPE (`gpt2`) takes its
pre-tokenizer by name; SentencePiece (`llama`) becomes BPE whose merges follow from the pieces' scores.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from sssd.errors import ExportError, UnsupportedModel
from sssd.export.config_fields import Config
from sssd.export.gguf_pretokenizers import PRE_TOKENIZERS
from sssd.export.gguf_reader import GgufFile
from sssd.export.model_text import ModelText

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_UNKNOWN, _CONTROL, _USER_DEFINED, _BYTE = 2, 3, 4, 6  # token types
_SPACE = "\u2581"  # SentencePiece's visible space
_BUILDERS = ("gpt2", "llama")
# Control tokens that end a turn; files made before eot_token_id existed do not name them.
_TURN_ENDS = ("<|eot_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>", "<|end_of_role|>")


class _Vocabulary(NamedTuple):
    tokens: tuple[str, ...]
    types: tuple[int, ...]


def read_gguf_text(file: GgufFile) -> ModelText:
    """The tokenizer, as the content of a tokenizer.json, and what goes with it.

    Raises UnsupportedModel for a tokenizer or pre-tokenizer that is not supported, listing those that are, and
    ExportError for metadata that is absent or does not fit together.
    """
    config = Config({k.removeprefix("tokenizer."): v for k, v in file.metadata.items()}, str(file.path))
    kind = config.text("ggml.model")
    if kind not in _BUILDERS:
        raise UnsupportedModel(f"{file.path}: tokenizer {kind!r} is not supported, only {', '.join(_BUILDERS)}")
    vocabulary = _vocabulary(config)
    tokenizer = _byte_level_bpe(config, vocabulary) if kind == "gpt2" else _sentencepiece(config, vocabulary)
    _add_tokens(tokenizer, vocabulary, normalized=kind == "llama" and not _prefixes_space(config))
    _add_ends(tokenizer, config, vocabulary, kind)
    return ModelText(
        tokenizer_json=tokenizer.to_str(),
        chat_template=config.text("chat_template") if config.has("chat_template") else None,
        bos_id=config.optional_integer("ggml.bos_token_id"),
        eos_ids=_eos_ids(config, vocabulary),
    )


def _vocabulary(config: Config) -> _Vocabulary:
    tokens = config.texts("ggml.tokens")
    types = config.ids("ggml.token_type") or (1,) * len(tokens)
    if len(types) != len(tokens):
        raise ExportError(f"{config.where}: {len(types)} token types for {len(tokens)} tokens: one each is needed")
    twice = [token for token, n in Counter(tokens).items() if n > 1]
    if twice:
        raise ExportError(f"{config.where}: tokens that stand twice in the vocabulary: {', '.join(map(repr, twice))}")
    return _Vocabulary(tokens, types)


def _byte_level_bpe(config: Config, vocabulary: _Vocabulary) -> Tokenizer:
    from tokenizers import Tokenizer, decoders, models, normalizers

    pre = config.text("ggml.pre", "default")
    if pre not in PRE_TOKENIZERS:
        supported = ", ".join(sorted(PRE_TOKENIZERS))
        raise UnsupportedModel(f"{config.where}: pre-tokenizer {pre!r} is not supported, only {supported}")
    rule = PRE_TOKENIZERS[pre]
    ids = {token: i for i, token in enumerate(vocabulary.tokens)}
    merges = [_merge(text, ids, config.where) for text in config.texts("ggml.merges")]
    tokenizer = Tokenizer(models.BPE(vocab=ids, merges=merges, ignore_merges=rule.whole_tokens_first))
    if rule.nfc:
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = rule.build()
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _merge(text: str, ids: dict[str, int], where: str) -> tuple[str, str]:
    cut = text.find(" ", 1)  # a piece may itself begin with a space
    left, right = text[:cut], text[cut + 1 :]
    if cut < 0 or left not in ids or right not in ids or left + right not in ids:
        raise ExportError(f"{where}: the merge {text!r} joins pieces that are not in the vocabulary")
    return left, right


def _sentencepiece(config: Config, vocabulary: _Vocabulary) -> Tokenizer:
    from tokenizers import Tokenizer, decoders, models, normalizers

    scores = config.numbers("ggml.scores")
    if len(scores) != len(vocabulary.tokens):
        raise ExportError(
            f"{config.where}: {len(scores)} scores for {len(vocabulary.tokens)} tokens: one each is needed"
        )
    ids = {token: i for i, token in enumerate(vocabulary.tokens)}
    unknown = next((vocabulary.tokens[i] for i, kind in enumerate(vocabulary.types) if kind == _UNKNOWN), None)
    # Text never becomes one of the others by merging, not even text that spells it.
    pieces = {token: scores[i] for token, i in ids.items() if vocabulary.types[i] not in (_UNKNOWN, _CONTROL, _BYTE)}
    merges = merges_by_score(pieces)
    model = models.BPE(vocab=ids, merges=merges, unk_token=unknown, fuse_unk=True, byte_fallback=True)
    tokenizer = Tokenizer(model)
    prefixes = _prefixes_space(config)
    visible = normalizers.Replace(" ", _SPACE)
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend(_SPACE), visible]) if prefixes else visible
    strip = [decoders.Strip(" ", 1, 0)] if prefixes else []
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse(), *strip]
    )
    return tokenizer


def merges_by_score(pieces: Mapping[str, float]) -> list[tuple[str, str]]:
    """Merges under which BPE joins what SentencePiece's BPE joins: the pair whose piece scores best comes first.

    Every split of a piece into two pieces is a merge; pieces of one score keep their order. Only where two ways to
    the same piece overlap (a|aa|a) may a text be cut elsewhere: SentencePiece takes the left one, BPE the better rank.
    Costs the total length of the pieces in dictionary look-ups.
    """
    merges: list[tuple[str, str]] = []
    for piece in sorted(pieces, key=lambda piece: -pieces[piece]):
        splits = ((piece[:cut], piece[cut:]) for cut in range(1, len(piece)))
        merges += [(left, right) for left, right in splits if left in pieces and right in pieces]
    return merges


def _prefixes_space(config: Config) -> bool:
    return config.flag("ggml.add_space_prefix", True)


def _add_tokens(tokenizer: Tokenizer, vocabulary: _Vocabulary, *, normalized: bool) -> None:
    """Control and user-defined tokens are matched in the text before anything is split."""
    from tokenizers import AddedToken

    typed = list(zip(vocabulary.tokens, vocabulary.types, strict=True))
    # A SentencePiece vocabulary writes spaces inside user-defined tokens visibly, as the normalizer does.
    defined = [AddedToken(t, special=False, normalized=normalized) for t, kind in typed if kind == _USER_DEFINED]
    tokenizer.add_tokens(defined)
    tokenizer.add_special_tokens(
        [AddedToken(t, special=True, normalized=False) for t, kind in typed if kind == _CONTROL]
    )


def _add_ends(tokenizer: Tokenizer, config: Config, vocabulary: _Vocabulary, kind: str) -> None:
    """Beginning-of-text and end-of-text tokens around an encoded text, where the file asks for them."""
    from tokenizers import processors

    usual = kind == "llama" or PRE_TOKENIZERS[config.text("ggml.pre", "default")].begins_texts
    asks_bos = config.flag("ggml.add_bos_token", usual and config.has("ggml.bos_token_id"))
    asks_eos = config.flag("ggml.add_eos_token")
    ends: list[tuple[str, int]] = []
    for asked, name in ((asks_bos, "ggml.bos_token_id"), (asks_eos, "ggml.eos_token_id")):
        if asked:
            ends.append((_token(config, name, vocabulary), config.integer(name)))
    if not ends:
        return
    first = [ends[0][0]] if asks_bos else []
    last = [ends[-1][0]] if asks_eos else []
    tokenizer.post_processor = processors.TemplateProcessing(
        single=[*first, "$A", *last],
        pair=[*first, "$A", *last, *(f"{t}:1" for t in first), "$B:1", *(f"{t}:1" for t in last)],
        special_tokens=ends,
    )


def _token(config: Config, name: str, vocabulary: _Vocabulary) -> str:
    token_id = config.integer(name)
    if not 0 <= token_id < len(vocabulary.tokens):
        raise ExportError(f"{config.where}: {name} is {token_id}, the vocabulary has {len(vocabulary.tokens)} tokens")
    return vocabulary.tokens[token_id]


def _eos_ids(config: Config, vocabulary: _Vocabulary) -> tuple[int, ...]:
    named = [config.optional_integer(f"ggml.{name}_token_id") for name in ("eos", "eot", "eom")]
    control = {t: i for i, t in enumerate(vocabulary.tokens) if vocabulary.types[i] == _CONTROL}
    found = [*named, *(control.get(token) for token in _TURN_ENDS)]
    return tuple(dict.fromkeys(i for i in found if i is not None))

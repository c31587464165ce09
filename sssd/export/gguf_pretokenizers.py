"""The named pre-tokenizers of byte-level BPE vocabularies in GGUF files.

Owns the names and the patterns that they stand for; knows nothing else of GGUF.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tokenizers.pre_tokenizers import PreTokenizer

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_ENDINGS = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"


def _words(n_digits: str) -> str:
    """The pattern that Llama 3 and Qwen 2 share but for the digits taken together."""
    return rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{n_digits}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_ENDINGS}"


def _cased_words(contractions: str, n_digits: str) -> str:
    """The pattern that splits words where their case changes."""
    lead = r"[^\r\n\p{L}\p{N}]?"
    words = rf"{lead}{_UPPER}*{_LOWER}+{contractions}|{lead}{_UPPER}+{_LOWER}*{contractions}"
    return rf"{words}|\p{{N}}{n_digits}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_ENDINGS}"


_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"


@dataclass(frozen=True, slots=True)
class PreTokenizerRule:
    """How text is cut before merging: by each pattern in turn, within the pieces of the one before."""

    patterns: tuple[str, ...]
    nfc: bool = False  # text is brought into Unicode normal form C first
    whole_tokens_first: bool = False  # a piece that is a token is taken whole, whatever the merges say
    begins_texts: bool = False  # a beginning-of-text token is put first unless the file says otherwise

    def build(self) -> PreTokenizer:
        """The rule as an object of the tokenizers library."""
        from tokenizers import Regex, pre_tokenizers

        splits = [pre_tokenizers.Split(Regex(pattern), behavior="isolated") for pattern in self.patterns]
        return pre_tokenizers.Sequence([*splits, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


_GPT2_RULE = PreTokenizerRule((_GPT2 + r"|\s+",))
_SINGLE_DIGITS_RULE = PreTokenizerRule((r"\p{N}", _GPT2 + r"|\s+"))
_LLAMA3_RULE = PreTokenizerRule((_words("{1,3}"),), whole_tokens_first=True, begins_texts=True)
_QWEN2_RULE = PreTokenizerRule((_words(""),), nfc=True)

PRE_TOKENIZERS: dict[str, PreTokenizerRule] = {
    "default": PreTokenizerRule((r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", r"[0-9][0-9][0-9]")),
    "gpt-2": _GPT2_RULE,
    "smollm": _SINGLE_DIGITS_RULE,
    "refact": _SINGLE_DIGITS_RULE,
    "starcoder": _SINGLE_DIGITS_RULE,
    "llama-bpe": _LLAMA3_RULE,
    "llama3": _LLAMA3_RULE,
    "dbrx": PreTokenizerRule((_words("{1,3}"),)),
    "smaug-bpe": PreTokenizerRule((_words("{1,3}"),)),
    "qwen2": _QWEN2_RULE,
    "deepseek-r1-qwen": _QWEN2_RULE,
    "gpt-4o": PreTokenizerRule((_cased_words(_CONTRACTIONS + "?", "{1,3}"),)),
    "tekken": PreTokenizerRule((_cased_words("", ""),), whole_tokens_first=True, begins_texts=True),
}

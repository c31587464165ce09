"""Constraints over a vocabulary: compiled once each, one cheap state a request. The only file that knows llguidance.

Knows tokens, no engine and no drafter. A state stands behind the committed tokens and steps ahead, and back again, as
it is asked about tokens behind them. What it answers is a function of those tokens alone.
"""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import numpy as np

from sssd.constraint import Constraint
from sssd.errors import MissingExtra, RequestError
from sssd.tree import trim
from sssd.types import Bool, DraftTree, Source

CACHED = 64  # compiled constraints that are kept
# JSON as json.dumps writes it: what models have seen most, and every character but the values' is then forced
_JSON: dict[str, Any] = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}

_NO_FORCING = '%llguidance {"no_forcing": true}\n'


class Grammars:
    """Compiles constraints for one vocabulary. `start` may be called from any thread.

    `tokenizer` is a tokenizer.json's text. Raises MissingExtra without llguidance. Cost: about a second for 50,000
    tokens.
    """

    def __init__(self, tokenizer: str, *, vocab_size: int, eos_ids: Sequence[int]) -> None:
        try:
            import llguidance
        except ImportError:
            raise MissingExtra("llguidance", "structured") from None
        if not eos_ids:
            raise RequestError("this bundle names no ending token: a constrained output could not end")
        self._library = llguidance
        self._eos_ids = frozenset(eos_ids)
        self._vocab_size = vocab_size
        self._vocabulary = llguidance.LLTokenizer(tokenizer, n_vocab=vocab_size, eos_token=list(eos_ids))
        added = json.loads(tokenizer).get("added_tokens", [])
        self._special_names = [t["content"] for t in added if self._vocabulary.is_special_token(t["id"])]
        self._limits = llguidance.LLParserLimits(verbose_errors=False)
        self._compiled: OrderedDict[Constraint, Any] = OrderedDict()  # least recently used first
        self._lock = threading.Lock()
        self.n_compiled = 0

    def start(self, constraint: Constraint) -> GrammarState:
        """A state before the first token. Raises RequestError for a constraint that is wrong, too large or impossible.

        Cost: a copy, some 10 us; milliseconds to a second when the constraint is new.
        """
        with self._lock:
            matcher = self._compiled.get(constraint)
            if matcher is None:
                matcher = self._compiled[constraint] = self._compile(constraint)
            self._compiled.move_to_end(constraint)
            while len(self._compiled) > CACHED:
                self._compiled.popitem(last=False)
            return GrammarState(matcher.deep_copy(), vocab_size=self._vocab_size, eos_ids=self._eos_ids)

    def _compile(self, constraint: Constraint) -> Any:
        try:
            source = self._source(constraint)
            matcher = self._library.LLMatcher(self._vocabulary, source, log_level=0, limits=self._limits)
        except ValueError as e:  # text that is no UTF-8, or a number that JSON has not
            raise RequestError(f"the {constraint.kind} cannot be used: {e}") from None
        if not matcher.is_error():
            matcher.deep_copy().compute_bitmask()  # makes what all states share
            first = GrammarState(matcher.deep_copy(), vocab_size=self._vocab_size, eos_ids=self._eos_ids)
            first.allowed(())
            if first.fault is None:
                self.n_compiled += 1
                return matcher
            raise RequestError(f"the {constraint.kind} cannot be met by any text: {first.fault}")
        why = " ".join(matcher.get_error().split())
        raise RequestError(f"the {constraint.kind} cannot be used: {why[:300]}")

    def _source(self, constraint: Constraint) -> str:
        """The constraint as llguidance reads it.

        A text that is forced is forced in the tokens that the tokenizer makes of it, and of a special token's name it
        makes that token, which is no text. Where such a name occurs, nothing is forced.
        """
        plain = not any(name in constraint.text for name in self._special_names)
        source = self._lark(constraint)
        return str(self._library.LLMatcher.grammar_from_lark(source if plain else _NO_FORCING + source))

    def _lark(self, constraint: Constraint) -> str:
        text = constraint.text
        if constraint.kind == "lark":
            return text
        if constraint.kind == "regex":
            return f"start: /{self._library.regex_to_lark(text)}/"
        value = json.loads(text)
        if constraint.kind == "json_schema":
            return f"start: %json {_json(value)}"
        if constraint.kind == "choice":
            return f"start: {' | '.join(map(json.dumps, value))}"
        opening, schema, closing, between = value
        more = "" if between is None else f" ({self._text(between)} framed)*"
        framed = f"{self._text(opening)} value {self._text(closing)}"
        return f"start: framed{more}\nframed: {framed}\nvalue: %json {_json(schema)}"

    def _text(self, text: str) -> str:
        """A text in lark's terms. Special tokens in it go by number: as text they are never tokens of their own."""
        words = self._vocabulary
        terms, plain = [], ""
        for token in words.tokenize_str(text, parse_special=True):
            if words.is_special_token(token):
                terms += [json.dumps(plain)] * bool(plain) + [f"<[{token}]>"]
                plain = ""
            else:
                plain += words.decode_str([token])
        return " ".join(terms + [json.dumps(plain)] * bool(plain))


def _json(schema: dict[str, Any]) -> str:
    """The schema's text, with our layout where it asks for no other."""
    return json.dumps(schema | {"x-guidance": _JSON | schema.get("x-guidance", {})})


class GrammarState:
    """Implements types.Grammar. Cost: a mask some 10 to 100 us; `permits` a few; `draft` a few a node."""

    def __init__(self, matcher: Any, *, vocab_size: int, eos_ids: frozenset[int]) -> None:
        self.fault: str | None = None
        self._matcher = matcher
        self._vocab_size = vocab_size
        self._eos_ids = eos_ids
        self._ahead: list[int] = []  # tokens the matcher has read beyond the committed ones

    def allowed(self, emitted: Sequence[int]) -> Bool:
        """Which tokens may follow the committed and then the `emitted` ones, bool [V]; all of them when at fault."""
        self._stand(emitted)
        bits = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
        mask = np.unpackbits(bits, count=self._vocab_size, bitorder="little").view(np.bool_)
        if self._matcher.is_error():
            self._fail(self._matcher.get_error())
        elif not mask.any():
            self._fail("no token of the vocabulary continues the text")
        return mask if self.fault is None else np.ones(self._vocab_size, np.bool_)

    def permits(self, emitted: Sequence[int], token: int) -> bool:
        """Whether `allowed(emitted)` holds `token`."""
        self._stand(emitted)
        return self._permits(token, self._matcher.compute_ff_tokens())

    def draft(self, tree: DraftTree, budget: int) -> DraftTree:
        """The nodes that are permitted, depth first, and forced tokens behind every leaf; the best `budget` of them."""
        children: list[list[int]] = [[] for _ in range(len(tree) + 1)]  # the root's are the last
        for i, parent in enumerate(tree.parents.tolist()):
            children[parent].append(i)
        tokens, scores, source = tree.tokens.tolist(), tree.scores.tolist(), tree.source.tolist()
        grown = _Grown()
        stack: list[tuple[int, int, list[int]]] = [(-1, -1, [])]  # node, its parent among the grown, tokens down to it
        while stack:
            node, place, path = stack.pop()
            if node >= 0:
                place = grown.add(tokens[node], place, scores[node], source[node])
                if tokens[node] in self._eos_ids:
                    continue
            self._stand(path)
            forced = self._matcher.compute_ff_tokens()
            kept = [c for c in children[node] if self._permits(tokens[c], forced)]
            stack += [(c, place, [*path, tokens[c]]) for c in reversed(kept)]
            if not kept:
                for token in forced[:budget]:
                    place = grown.add(token, place, scores[node] if node >= 0 else 1.0, Source.GRAMMAR)
        return trim(grown.tree(), budget)

    def advance(self, tokens: Sequence[int]) -> None:
        """Take tokens as committed."""
        self._stand(tokens)
        self._ahead.clear()

    def _permits(self, token: int, forced: Sequence[int]) -> bool:
        """Whether the mask holds `token` where the matcher stands; `forced` are what it forces there."""
        if token in self._eos_ids:
            return bool(self._matcher.is_accepting())
        if forced:  # the mask then keeps to these tokens, though others spell the same text
            return bool(token == forced[0])
        return bool(self._matcher.validate_tokens([token]) == 1)

    def _stand(self, tokens: Sequence[int]) -> None:
        """Read, or take back, until the matcher stands behind the committed tokens and `tokens`."""
        if self.fault is not None:
            return
        ahead = self._ahead
        same = 0
        while same < len(ahead) and same < len(tokens) and ahead[same] == tokens[same]:
            same += 1
        if same < len(ahead):
            self._matcher.rollback(len(ahead) - same)
            del ahead[same:]
        rest = list(tokens[same:])
        if rest and self._matcher.try_consume_tokens(rest) < len(rest):
            self._fail(self._matcher.get_error() or "a token was chosen that it does not allow")
        ahead += rest

    def _fail(self, why: str) -> None:
        self.fault = f"the constraint cannot go on: {' '.join(why.split())[:300]}"


class _Grown:
    """A draft tree in the making."""

    def __init__(self) -> None:
        self._tokens: list[int] = []
        self._parents: list[int] = []
        self._scores: list[float] = []
        self._source: list[int] = []

    def add(self, token: int, parent: int, score: float, source: int) -> int:
        self._tokens.append(token)
        self._parents.append(parent)
        self._scores.append(score)
        self._source.append(source)
        return len(self._tokens) - 1

    def tree(self) -> DraftTree:
        return DraftTree(
            np.array(self._tokens, np.int32),
            np.array(self._parents, np.int32),
            np.array(self._scores, np.float32),
            np.array(self._source, np.uint8),
        )

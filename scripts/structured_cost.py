"""What constrained output costs and saves: masks on a bundle's vocabulary, steps on a JSON schema.

    python scripts/structured_cost.py --engine smol/

For every kind of constraint: microseconds of masking a node's scores, of asking about one token, of drafting at an
empty tree, along one valid text. Then the bundle answers a prompt under a schema, decoding plainly, with the grammar's
own drafts alone, and with retrieval beside them; the three texts must be equal.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from time import perf_counter_ns

import numpy as np

import sssd
from sssd.constraint import Constraint
from sssd.grammar import Grammars, GrammarState
from sssd.types import empty_tree

SCHEMA = {
    "type": "object",
    "properties": {
        "title": {"type": "string", "maxLength": 60},
        "category": {"enum": ["news", "sports", "science", "culture"]},
        "year": {"type": "integer", "minimum": 1000, "maximum": 2100},
        "location": {
            "type": "object",
            "properties": {"city": {"type": "string", "maxLength": 30}, "country": {"type": "string", "maxLength": 30}},
            "required": ["city", "country"],
            "additionalProperties": False,
        },
        "verified": {"type": "boolean"},
    },
    "required": ["title", "category", "year", "location", "verified"],
    "additionalProperties": False,
}
TEXT = (
    '{"title": "The harbour is enlarged", "category": "news", "year": 1530, '
    '"location": {"city": "Old Town", "country": "Norway"}, "verified": true}'
)
PROMPT = (
    "Describe this as JSON with title, category, year, location and verified: The harbour of the old town in Norway "
    "was enlarged in 1530 by order of the council, because the ships of the merchants had become larger."
)
KINDS = {
    "json_schema": (Constraint.json_schema(SCHEMA), TEXT),
    "json_object": (Constraint.json_object(), TEXT),
    "regex": (Constraint.regex(r"[A-Z][a-z ]+: [0-9]{4}-[0-9]{2}-[0-9]{2}"), "Last change: 1530-10-11"),
    "choice": (Constraint.choice(["positive", "negative", "neutral"]), "neutral"),
}


def microseconds(act: Callable[[], object], times: list[float]) -> None:
    """Add what one call takes."""
    began = perf_counter_ns()
    act()
    times.append((perf_counter_ns() - began) / 1e3)


def walk(grammars: Grammars, constraint: Constraint, ids: list[int], vocab_size: int) -> str:
    """Medians and 99th percentiles along a text."""
    masked: list[float] = []
    one: list[float] = []
    draft: list[float] = []
    scores = np.random.default_rng(0).normal(size=vocab_size).astype(np.float32)

    def mask_scores(state: GrammarState) -> None:
        scores[~state.allowed(())] = -np.inf

    for _ in range(20):
        state = grammars.start(constraint)
        for token in ids:
            microseconds(partial(state.draft, empty_tree(), 15), draft)
            microseconds(partial(state.permits, (), token), one)
            microseconds(partial(mask_scores, state), masked)
            state.advance([token])
        assert state.fault is None, state.fault
    return " | ".join(f"{np.median(t):7.1f} {np.percentile(t, 99):8.1f}" for t in (masked, one, draft))


def answers(engine: str) -> None:
    """One answer three ways."""
    plain = None
    rows = (("plain", "none", 0), ("grammar's own drafts", "none", 15), ("with retrieval", "retrieval", 15))
    for name, drafter, most in rows:
        with sssd.load(engine, drafter=drafter, max_draft_tokens=most, n_slots=1, n_warm=0) as llm:
            messages = [sssd.Message("user", PROMPT)]
            params = sssd.SamplingParams(max_tokens=200)
            llm.chat(messages, params, constraint=KINDS["json_schema"][0])
            done = llm.chat(messages, params, constraint=KINDS["json_schema"][0])
        plain = plain or done.text
        assert done.text == plain, "drafts have changed the text"
        s = done.stats
        print(f"{name:22} {s.tokens} tokens in {s.steps} steps: {s.tokens_per_step:.2f} a step, ", end="")
        print(f"{s.tokens_per_second:.1f} tokens/s")
        print(f"{'':22} drafted {s.drafted}, accepted {s.accepted}")
    print(plain)


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--engine", required=True)
    engine = parser.parse_args().engine
    with sssd.load(engine, drafter="none", n_slots=1, n_warm=0) as llm:
        tokenizer, spec = llm.tokenizer, llm.spec
        began = perf_counter_ns()
        grammars = Grammars(tokenizer.to_json(), vocab_size=spec.vocab_size, eos_ids=spec.eos_ids)
        print(f"vocabulary of {spec.vocab_size} tokens read in {(perf_counter_ns() - began) / 1e9:.2f} s")
        print(f"{'microseconds':12}     mask: median, p99 |  permits: median, p99 |  draft: median, p99")
        for name, (constraint, text) in KINDS.items():
            began = perf_counter_ns()
            grammars.start(constraint)
            compiled = (perf_counter_ns() - began) / 1e6
            ids = tokenizer.encode(text, special=False)
            print(f"{name:12} {walk(grammars, constraint, ids, spec.vocab_size)} | compiled in {compiled:.1f} ms")
    answers(engine)


if __name__ == "__main__":
    main()

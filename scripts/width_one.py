"""How often does decoding at width 1 say something else than at the bundle's min_width, and how near was the call?

usage: python scripts/width_one.py BUNDLE PROMPTS.jsonl [N_PROMPTS] [N_TOKENS]

Greedy and seeded sampling, without speculation on both sides. For every answer that differs, the gap between the two
best logits at the first differing token is reported.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import sssd
from sssd import Completion, SamplingParams


def answers(bundle: str, prompts: list[str], params: SamplingParams, *, fastest: bool) -> list[Completion]:
    """Plain decoding, one request at a time."""
    with sssd.load(bundle, drafter=None, n_slots=1, n_warm=0, fastest=fastest) as llm:
        return [llm.generate(p, params) for p in prompts]


def first_difference(a: Completion, b: Completion) -> int | None:
    """Index of the first token that differs; None when the answers are equal."""
    n = min(len(a.token_ids), len(b.token_ids))
    found = next((i for i in range(n) if a.token_ids[i] != b.token_ids[i]), n)
    return None if a.token_ids == b.token_ids else found


def report(bundle: str, prompts: list[str], n_tokens: int) -> None:
    """One line a way of sampling."""
    for name, options in (("greedy", {}), ("T=0.8 top-p 0.95", {"temperature": 0.8, "top_p": 0.95, "seed": 7})):
        params = SamplingParams(max_tokens=n_tokens, logprobs=2, **options)
        stable = answers(bundle, prompts, params, fastest=False)
        single = answers(bundle, prompts, params, fastest=True)
        places = [(a, first_difference(a, b)) for a, b in zip(stable, single, strict=True)]
        gaps = [a.logprobs[i].top[0][1] - a.logprobs[i].top[1][1] for a, i in places if i is not None]
        shown = ", ".join(f"{g:.2g}" for g in sorted(gaps)) or "none"
        print(f"{bundle} {name}: {len(gaps)} of {len(prompts)} answers differ; logit gaps there: {shown}", flush=True)


if __name__ == "__main__":
    if not 3 <= len(sys.argv) <= 5:
        sys.exit(__doc__)
    n_prompts, n_tokens = (int(x) for x in (*sys.argv[3:], *("40", "64")[len(sys.argv) - 3 :]))
    records = [json.loads(line) for line in Path(sys.argv[2]).read_text("utf-8").splitlines()]
    step = max(1, len(records) // n_prompts)
    report(sys.argv[1], [r["turns"][0] if "turns" in r else r["prompt"] for r in records[::step]][:n_prompts], n_tokens)

"""Is what is said with speculation what is said without? Counts answers that differ; the exit status says it too.

usage: python scripts/lossless.py BUNDLE PROMPTS.jsonl [N_PROMPTS] [N_TOKENS] [DRAFTER]

Plain decoding, one request at a time, against drafts in a batch of four with short prompt chunks; greedy and seeded
sampling (temperature 0.8, top-p 0.95).
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import sssd
from sssd import Completion, SamplingParams


def answers(bundle: str, prompts: list[str], params: SamplingParams, **options: Any) -> list[Completion]:
    """All answers of a fresh engine and drafter."""
    with sssd.load(bundle, n_warm=0, **options) as llm:
        return llm.generate(prompts, params)


def compare(bundle: str, prompts: list[str], n_tokens: int, drafter: str) -> int:
    """Answers that differ, over both ways of sampling."""
    differing = 0
    for name, options in (("greedy", {}), ("T=0.8 top-p 0.95", {"temperature": 0.8, "top_p": 0.95, "seed": 7})):
        params = SamplingParams(max_tokens=n_tokens, **options)
        alone = answers(bundle, prompts, params, drafter="none", n_slots=1)
        drafted = answers(bundle, prompts, params, drafter=drafter, n_slots=4, chunk=100, max_draft_tokens=12)
        n = sum(a.token_ids != d.token_ids for a, d in zip(alone, drafted, strict=True))
        per_step = sum(d.stats.tokens for d in drafted) / sum(d.stats.steps for d in drafted)
        print(f"{bundle} {name}: {n} of {len(prompts)} answers differ; {per_step:.2f} tokens per step", flush=True)
        differing += n
    return differing


if __name__ == "__main__":
    if not 3 <= len(sys.argv) <= 6:
        sys.exit(__doc__)
    n_prompts, n_tokens, drafter = (*sys.argv[3:], *("40", "64", "retrieval")[len(sys.argv) - 3 :])
    records = [json.loads(line) for line in Path(sys.argv[2]).read_text("utf-8").splitlines()]
    chosen = records[:: max(1, len(records) // int(n_prompts))][: int(n_prompts)]  # spread over all tasks
    texts = [r["turns"][0] if "turns" in r else r["prompt"] for r in chosen]
    sys.exit(1 if compare(sys.argv[1], texts, int(n_tokens), drafter) else 0)

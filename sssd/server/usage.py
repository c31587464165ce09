"""What a call took, as the API reports it. Owns the counting over several answers; knows no JSON and no text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from sssd.answer import Stats
from sssd.server.replies import CompletionDetails, Metrics, PromptDetails, SpeculativeMetrics, Usage
from sssd.types import Source


def usage_of(stats: Sequence[Stats], n: int, *, silent: bool = False) -> Usage:
    """Tokens of answers that come `n` to a prompt, prompt after prompt; `silent` ones do not count."""
    prompts = stats[::n]
    prompt_tokens = sum(s.prompt_tokens for s in prompts)
    tokens = 0 if silent else sum(s.tokens for s in stats)
    predicted = Source.PREDICTION.name.lower()
    accepted = sum(s.accepted.get(predicted, 0) for s in stats)
    drafted = sum(s.drafted.get(predicted, 0) for s in stats)
    return Usage(
        prompt_tokens,
        tokens,
        prompt_tokens + tokens,
        PromptDetails(sum(s.cached_tokens for s in prompts)),
        CompletionDetails(accepted, drafted - accepted),
    )


def metrics_of(stats: Sequence[Stats], max_draft_tokens: int) -> Metrics:
    """How drafting went, over all answers together."""
    lengths: Counter[int] = Counter()
    drafted: Counter[str] = Counter()
    accepted: Counter[str] = Counter()
    for s in stats:
        lengths.update(s.accepted_lengths)
        drafted.update(s.drafted)
        accepted.update(s.accepted)
    steps = lengths.total()
    n_drafted, n_accepted = drafted.total(), accepted.total()
    return Metrics(
        SpeculativeMetrics(
            mean_acceptance_length=sum(s.tokens for s in stats) / steps if steps else 0.0,
            draft_acceptance_rate=n_accepted / n_drafted if n_drafted else None,
            acceptance_histogram=[lengths[i] for i in range(max(lengths, default=-1) + 1)],
            num_spec_steps=steps,
            num_accepted_draft_tokens=n_accepted,
            num_draft_tokens=n_drafted,
            num_spec_tokens=max_draft_tokens,
            by_source={name: [accepted[name], drafted[name]] for name in drafted},
        )
    )

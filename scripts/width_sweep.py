"""Does the planner pick the best width, and does the running budget keep up with it? Every fixed width is tried.

usage: python scripts/width_sweep.py BUNDLE PROMPTS.jsonl [N_PROMPTS] [N_TOKENS] [BATCHES]

All choices run on one engine and take turns at every batch of prompts. "planned" is what `sssd plan` says when the
answers of this run are replayed; "budget" is the loop's own choice, step by step. The bundle must be calibrated.
"""

from __future__ import annotations

import sys
from pathlib import Path
from time import perf_counter

import numpy as np

from sssd import Completion, SamplingParams
from sssd.bench.modes import Lane, open_lane
from sssd.bench.planner import BUDGETS, forecast, replayed_acceptance
from sssd.bench.replay import Pair
from sssd.bench.workload import Prompt, batches, choose, read_questions
from sssd.drafting.choose import make_drafter
from sssd.engines.ort import OrtEngine
from sssd.loading import engine_costs
from sssd.runtime.calibration import fingerprint, load_calibration
from sssd.spec import Bundle, open_bundle
from sssd.text import Tokenizer


def spread(prompts: tuple[Prompt, ...], n: int) -> tuple[Prompt, ...]:
    """n of them over all tasks."""
    return prompts[:: max(1, len(prompts) // n)][:n]


class Sweep:
    """One batch size: a lane for every fixed number of draft nodes, one for the budget."""

    def __init__(self, bundle: Bundle, engine: OrtEngine, tokenizer: Tokenizer, batch: int) -> None:
        self.bundle = bundle
        self.batch = batch
        self.seconds: dict[str, float] = {}
        self.tokens: dict[str, int] = {}
        measured = engine_costs(bundle, n_slots=batch, device="cpu", threads=0)
        self.lanes: dict[str, Lane] = {}
        for name, nodes, costs in [("budget", 15, measured), *((f"{1 + k}", k, None) for k in (0, *BUDGETS))]:
            self.lanes[name] = open_lane(
                name,
                engine,
                make_drafter("retrieval"),
                tokenizer,
                n_slots=batch,
                max_waiting=batch,
                max_draft_tokens=nodes,
                fixed_width=None,
                costs=costs,
            )

    def run(self, prompts: tuple[Prompt, ...], n_tokens: int) -> list[Pair]:
        """All prompts through all lanes, in turns; the recorded answers."""
        pairs: list[Pair] = []
        params = SamplingParams(max_tokens=n_tokens, ignore_eos=True)
        names = list(self.lanes)
        for unit, group in enumerate(batches(prompts, self.batch)):
            for name in (*names[unit % len(names) :], *names[: unit % len(names)]):
                began = perf_counter()
                answers: list[Completion] = self.lanes[name].llm.generate([p.token_ids for p in group], params)
                self.seconds[name] = self.seconds.get(name, 0.0) + perf_counter() - began
                self.tokens[name] = self.tokens.get(name, 0) + sum(len(a.token_ids) for a in answers)
            pairs += [Pair(p.token_ids, np.array(a.token_ids, np.int32)) for p, a in zip(group, answers, strict=True)]
        return pairs

    def report(self, pairs: list[Pair]) -> None:
        """Tokens a second of every choice, and what was planned."""
        calibration = load_calibration(self.bundle, fingerprint(self.bundle, device="cpu", threads=0))
        if calibration.curve is None:
            sys.exit(calibration.reason)
        context = int(np.mean([len(p.prompt) + len(p.answer) / 2 for p in pairs]))
        acceptance = replayed_acceptance(pairs, lambda: make_drafter("retrieval"))
        told = forecast(self.bundle, calibration.curve, acceptance, acceptance_from="this run", context=context)
        planned = next(f.width for f in told.batches if f.batch == self.batch)
        rates = {name: self.tokens[name] / self.seconds[name] for name in self.lanes}
        fixed = {name: rate for name, rate in rates.items() if name != "budget"}
        best = max(fixed, key=lambda name: fixed[name])
        print(f"batch {self.batch}: " + ", ".join(f"width {n} {r:.1f}" for n, r in fixed.items()) + " tokens/s")
        print(
            f"  best {best}; planned {planned}: {fixed[str(planned)] / fixed[best]:.3f} of the best; "
            f"budget {rates['budget']:.1f} tokens/s: {rates['budget'] / fixed[best]:.3f} of the best",
            flush=True,
        )


def main(path: str, data: str, n_prompts: int, n_tokens: int, sizes: list[int]) -> None:
    """One sweep a batch size."""
    bundle = open_bundle(path)
    tokenizer = Tokenizer(bundle)
    workload = choose(read_questions([Path(data)]), tokenizer, max_prompt=1000, chat=tokenizer.has_chat_template)
    engine = OrtEngine(bundle, n_slots=max(sizes))
    for batch in sizes:
        sweep = Sweep(bundle, engine, tokenizer, batch)
        sweep.report(sweep.run(spread(workload.prompts, max(n_prompts, batch)), n_tokens))


if __name__ == "__main__":
    if not 3 <= len(sys.argv) <= 6:
        sys.exit(__doc__)
    n_prompts, n_tokens, sizes = (*sys.argv[3:], *("12", "64", "1,4,8")[len(sys.argv) - 3 :])
    main(sys.argv[1], sys.argv[2], int(n_prompts), int(n_tokens), [int(s) for s in sizes.split(",")])

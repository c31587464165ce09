"""A model's own answers, as JSONL for `sssd datastore build`: what a server that remembers would have collected.

usage: python scripts/own_answers.py BUNDLE N_TOKENS PROMPTS.jsonl[:FIRST[:END]] ... > answers.jsonl

FIRST and END count the prompts of each task of a file, from 0. Greedy, eight at a time, up to the model's own end.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import sssd
from sssd import SamplingParams
from sssd.bench.workload import Prompt, choose, read_questions

BATCH = 8


def chosen(llm: sssd.LLM, given: str, n_tokens: int) -> Iterator[Prompt]:
    """The prompts of one argument, task by task."""
    file, *ends = given.split(":")
    first, end = (int(e) if e else None for e in [*ends, "", ""][:2])
    workload = choose(
        read_questions([Path(file)]),
        llm.tokenizer,
        max_prompt=llm.spec.max_len - n_tokens,
        chat=llm.tokenizer.has_chat_template,
    )
    for task in workload.tasks:
        yield from workload.of_task(task)[first:end]


def main(bundle: str, n_tokens: int, files: list[str]) -> None:
    """Print one record an answer."""
    with sssd.load(bundle, n_slots=BATCH, n_warm=0) as llm:
        prompts = [p for given in files for p in chosen(llm, given, n_tokens)]
        for i in range(0, len(prompts), BATCH):
            print(f"\r{i} of {len(prompts)}", end="", file=sys.stderr)
            batch = prompts[i : i + BATCH]
            answers = llm.generate([p.token_ids for p in batch], SamplingParams(max_tokens=n_tokens))
            for prompt, answer in zip(batch, answers, strict=True):
                print(json.dumps({"id": prompt.id, "task": prompt.task, "text": answer.text}), flush=True)
        print(f"\r{len(prompts)} answers", file=sys.stderr)


if __name__ == "__main__":
    if len(sys.argv) < 4:
        sys.exit(__doc__)
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3:])

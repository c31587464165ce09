"""Real prompts and recorded answers that stand beside the repository, and the demo model; tests skip without them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
DATA = ROOT.parent / "shared" / "data"
DEMO = ROOT / ".demo" / "SmolLM2-135M-Instruct.Q4_1.gguf"


def records(name: str) -> list[dict[str, Any]]:
    """All records of a JSONL file of the data folder."""
    path = DATA / name
    if not path.exists():
        pytest.skip(
            f"{name} is not there: put the data folder at {DATA.relative_to(ROOT.parent)} beside the repository"
        )
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def spec_bench(n_each: int) -> list[tuple[str, str]]:
    """(task, first prompt) of `n_each` records of each of Spec-Bench's six tasks, in turns."""
    found: dict[str, list[str]] = {}
    for record in records("specbench.jsonl"):
        task = record["task"].split("/")[0]
        found.setdefault(task, []).append(record["turns"][0] if "turns" in record else record["prompt"])
    return [(task, found[task][i]) for i in range(n_each) for task in found]


def demo_model() -> Path:
    """The demo checkpoint; `make test` fetches it."""
    if not DEMO.exists():
        pytest.skip("the demo model is not there: run `make test`, or python scripts/fetch_demo.py .demo")
    return DEMO

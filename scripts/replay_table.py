"""Print the replay tables of docs/drafters/retrieval.md: every drafter on every given file.

python scripts/replay_table.py shared/data/replay/*.npz
"""

from __future__ import annotations

import sys
from pathlib import Path

from sssd.bench.replay import ReplayRecord
from sssd.bench.replay_files import replay_files

RUNS: tuple[tuple[str, dict[str, object]], ...] = (
    ("retrieval, datastore", {"own_documents": True}),
    ("retrieval, datastore and live", {"own_documents": True, "live": True}),
    ("retrieval", {}),
    ("authors' rules, datastore", {"rules": "sssd", "own_documents": True}),
    ("authors' rules", {"rules": "sssd"}),
    ("Max-Gram", {"drafter": "maxgram"}),
    ("prompt lookup", {"drafter": "lookup"}),
)


def line(name: str, records: list[ReplayRecord]) -> str:
    """One table row: tokens per step at each budget, then propose and accept times at the third."""
    steps = " / ".join(f"{r.tokens_per_step:.3f}" for r in records)
    r = records[2]
    return (
        f"| {r.set} | {name} | {steps} | {r.propose_us_p50:.1f} / {r.propose_us_p99:.1f} | "
        f"{r.accept_us_p50:.1f} / {r.accept_us_p99:.1f} |"
    )


def main(files: list[Path]) -> None:
    """Replay and print."""
    for name, options in RUNS:
        for path in files:
            print(line(name, replay_files([path], **options)), flush=True)  # type: ignore[arg-type]


if __name__ == "__main__":
    main([Path(argument) for argument in sys.argv[1:]])

"""Print the replay tables of docs/drafters/retrieval.md: every drafter on every given file.

python scripts/replay_table.py shared/data/replay/*.npz
"""

from __future__ import annotations

import sys
from pathlib import Path

from sssd.bench.replay import ReplayRecord
from sssd.bench.replay_files import open_documents, replay_files

RUNS: tuple[tuple[str, bool, dict[str, object]], ...] = (  # name, with the set's own documents, options
    ("retrieval, datastore", True, {}),
    ("retrieval, datastore and live", True, {"live": True}),
    ("retrieval", False, {}),
    ("authors' rules, datastore", True, {"rules": "sssd"}),
    ("authors' rules", False, {"rules": "sssd"}),
    ("Max-Gram", False, {"drafter": "maxgram"}),
    ("prompt lookup", False, {"drafter": "lookup"}),
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
    for name, stored, options in RUNS:
        for path in files:
            store = open_documents(path) if stored else None
            print(line(name, replay_files([path], store=store, **options)), flush=True)  # type: ignore[arg-type]


if __name__ == "__main__":
    main([Path(argument) for argument in sys.argv[1:]])

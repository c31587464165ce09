"""Kills a process that writes a datastore, again and again, and looks at what is left. Owns the crash measure.

    python scripts/crash_store.py --kills 200

The writer builds, adds, compacts and runs a live datastore on one file, in random order, and says after each commit
how many documents are safe. It is killed with SIGKILL at a random moment; the file must then open, verify, and hold
exactly the documents 0 .. n-1 for an n no smaller than what was said. Prints one line a kill and a summary.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from sssd.drafting import datastore
from sssd.drafting.store_live import LiveDatastore, LiveOptions
from sssd.types import Int32

TOKENIZER = "crash-test"
VOCAB_SIZE = 5000
LENGTH = 50  # tokens of every document
LARGEST_FILE = 8 << 20  # bytes; a larger one is removed, so that a kill is not spent on old text
_BUILD = datastore.BuildOptions(memory=4 << 20, workers=2)
_LIVE = LiveOptions(head_tokens=4096, segment_tokens=65536, interval_seconds=0.02, garbage_bytes=1 << 20)


@dataclass(frozen=True, slots=True)
class Aftermath:
    """What one kill left."""

    operation: str  # what the writer was doing
    n_safe: int  # documents that it had said were committed
    n_found: int


def document(number: int) -> Int32:
    """Document `number`: its number in two tokens, then tokens that follow from it: int32 [LENGTH]."""
    tail = (np.arange(LENGTH - 2) * 7919 + number * 104_729) % VOCAB_SIZE
    return np.concatenate([[number // 1000, number % 1000], tail]).astype(np.int32)


def found_documents(path: Path) -> list[int]:
    """The numbers of all documents in the file, ascending. Fails when one is not as it was written."""
    numbers: list[int] = []
    with datastore.Datastore(path, tokenizer=TOKENIZER) as store:
        for namespace in store.namespaces:
            for segment in store.segments(namespace):
                rows = segment.tokens.reshape(-1, LENGTH + 1)
                for row in rows.tolist():
                    number = row[0] * 1000 + row[1]
                    if row[:-1] != document(number).tolist() or row[-1] != -1:
                        raise AssertionError(f"document {number} is not what was written")
                    numbers.append(number)
    return sorted(numbers)


def write_forever(path: Path, seed: int) -> None:
    """Build, add, compact and live sessions in random order; one line on stdout for what begins and what is safe."""
    choose = random.Random(seed)
    while True:
        n = len(found_documents(path)) if path.exists() else 0
        say(f"safe {n}")
        if n == 0:
            say("doing build")
            path.unlink(missing_ok=True)
            datastore.build(
                path,
                (document(i) for i in range(6000)),
                tokenizer=TOKENIZER,
                vocab_size=VOCAB_SIZE,
                options=_BUILD,
                progress=lambda done, read: say(f"safe {done // LENGTH}"),
            )
            continue
        operation = choose.choice(["add", "compact", "live", "rebuild"])
        say(f"doing {operation}")
        if operation == "add":
            more = (document(i) for i in range(n, n + 6000))
            datastore.add(
                path,
                more,
                tokenizer=TOKENIZER,
                options=_BUILD,
                progress=lambda done, read, n=n: say(f"safe {n + done // LENGTH}"),
            )
        elif operation == "compact":
            datastore.compact(path, options=_BUILD)
        elif operation == "rebuild":
            same = (document(i) for i in range(n))
            datastore.build(path, same, tokenizer=TOKENIZER, vocab_size=VOCAB_SIZE, options=_BUILD, force=True)
        else:
            _live_session(path, n)


def kill_once(path: Path, seed: int) -> Aftermath:
    """Start a writer, kill it at a random moment, and check the file. Fails when anything committed is not there."""
    delay = random.Random(seed).uniform(0.0, 0.8)
    command = [sys.executable, __file__, "--write", str(path), "--seed", str(seed)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}  # the writer imports what its parent does
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as writer:
        assert writer.stdout is not None
        first = writer.stdout.readline()  # it has started; from here on any moment may be its last
        time.sleep(delay)
        os.kill(writer.pid, signal.SIGKILL)
        lines = [first, *writer.stdout]
    assert writer.returncode == -signal.SIGKILL, "the writer failed by itself"
    operation, n_safe = "start", 0
    for kind, value in (line.split() for line in lines if line.endswith("\n") and len(line.split()) == 2):
        operation, n_safe = (value, n_safe) if kind == "doing" else (operation, int(value))
    if not path.exists():
        assert n_safe == 0
        return Aftermath(operation, 0, 0)
    report = datastore.inspect(path, verify=True)
    assert not report.problems, report.problems
    found = found_documents(path)
    assert found == list(range(len(found))), "documents are missing in the middle, or there twice"
    assert len(found) >= n_safe, f"{n_safe} documents were committed, {len(found)} are there"
    if report.file_bytes > LARGEST_FILE:
        path.unlink()
    return Aftermath(operation, n_safe, len(found))


def say(line: str) -> None:
    """One line to the parent, at once."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def _live_session(path: Path, n: int) -> None:
    with LiveDatastore(path, tokenizer=TOKENIZER, vocab_size=VOCAB_SIZE, options=_LIVE) as live:
        for i in range(n, n + 1200):
            live.remember(i, "default", document(i))
            if i % 50 == 49:
                live.flush()
                say(f"safe {i + 1}")


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--write", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.write is not None:
        write_forever(given.write, given.seed)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "crash.store"
        killed: dict[str, int] = {}
        for number in range(given.kills):
            after = kill_once(path, given.seed + number)
            killed[after.operation] = killed.get(after.operation, 0) + 1
            say(f"kill {number + 1} during {after.operation}: {after.n_safe} committed, {after.n_found} found")
    say(f"{given.kills} kills survived: " + ", ".join(f"{n} in {name}" for name, n in sorted(killed.items())))


if __name__ == "__main__":
    main()

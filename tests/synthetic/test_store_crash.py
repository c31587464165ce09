from __future__ import annotations

import importlib.util
import multiprocessing
import sys
from multiprocessing.connection import Connection
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from sssd.drafting import datastore
from tests.helpers.linear_store import live_documents

SCRIPT = Path(__file__).parents[2] / "scripts" / "crash_store.py"


@pytest.fixture(scope="module")
def crash() -> ModuleType:
    spec = importlib.util.spec_from_file_location("crash_store", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["crash_store"] = module
    spec.loader.exec_module(module)
    return module


def test_twenty_kills_lose_nothing_that_was_committed(crash: ModuleType, tmp_path: Path) -> None:
    path = tmp_path / "crash.store"
    operations = [crash.kill_once(path, seed).operation for seed in range(20)]
    assert len(set(operations)) >= 3


def document(number: int) -> list[int]:
    return [number, *[(number * 31 + i * 7) % 1000 for i in range(20)]]


def read_on(path: Path, pipe: Connection) -> None:
    """Until told to stop: refresh, and look whether the documents are 0 .. n-1, each as it was written."""
    n_changes, n_seen = 0, 0
    with datastore.Datastore(path, tokenizer="vocab") as store:
        pipe.send("ready")
        while not pipe.poll():
            n_changes += store.refresh()
            documents = live_documents(store.segments("default"))
            assert documents == [document(number) for number in range(len(documents))]
            assert len(documents) >= n_seen
            n_seen = len(documents)
    pipe.send((n_changes, n_seen))


def test_four_processes_read_while_one_adds_and_none_sees_a_wrong_match(tmp_path: Path) -> None:
    path = tmp_path / "shared.store"
    datastore.build(path, [document(0)], tokenizer="vocab", vocab_size=1000)
    spawn = multiprocessing.get_context("spawn")
    pipes = [spawn.Pipe() for _ in range(4)]
    readers = [spawn.Process(target=read_on, args=(path, there), daemon=True) for _, there in pipes]
    for reader in readers:
        reader.start()
    for here, _ in pipes:
        assert here.poll(120), "a reader did not start"
        assert here.recv() == "ready"
    n, rng = 1, np.random.default_rng(0)
    for turn in range(60):
        more = int(rng.integers(1, 20))
        datastore.add(path, [document(i) for i in range(n, n + more)], tokenizer="vocab")
        n += more
        if turn % 8 == 7:
            datastore.compact(path)
    for here, _ in pipes:
        here.send("stop")
    for (here, _), reader in zip(pipes, readers, strict=True):
        assert here.poll(120), "a reader failed"
        n_changes, n_seen = here.recv()
        assert n_changes > 0
        assert 1 < n_seen <= n
        reader.join()
        assert reader.exitcode == 0

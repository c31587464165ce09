"""A short soak: crowds, disconnects and garbage leave every other answer as it is alone, and nothing behind."""

from __future__ import annotations

import asyncio
import gc
from pathlib import Path

import httpx

from scripts.soak import soak
from sssd.drafting.retrieval import Retrieval
from tests.helpers.scripts import random_script
from tests.helpers.serving import VOCAB, scripted_model, served
from tests.unit.test_server_delivery import wait_until


def test_a_crowd_of_clients_gets_what_each_gets_alone(tmp_path: Path) -> None:
    drafter = Retrieval()
    model = scripted_model(tmp_path, random_script(vocab=VOCAB), drafter, max_len=1024, max_waiting=1000)
    with served(model) as base:
        report = asyncio.run(soak(base, clients=24, seconds=3, most_tokens=40, compare=60))
        assert report.faults == []
        assert report.finished > 20
        assert report.left > 0
        assert report.malformed > 0
        wait_until(lambda: not len(model.loop.scheduler))
        assert model.loop.scheduler.check() == []
        assert drafter.check() == []
        empty = drafter.memory_bytes()
        again = httpx.post(f"{base}/v1/completions", json={"prompt": "a", "max_tokens": 5}, timeout=20)
        assert again.status_code == 200
        wait_until(lambda: not len(model.loop.scheduler))
        gc.collect()
        assert drafter.memory_bytes() <= empty + 65536

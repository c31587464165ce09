"""A server over a scripted target: real HTTP on a free port, no model."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import uvicorn

from sssd.config import LoopConfig
from sssd.drafting.base import Drafter, NullDrafter
from sssd.engines.scripted import Script, ScriptedEngine
from sssd.llm import LLM
from sssd.model import Model
from sssd.server.app import make_app
from sssd.server.serving import Serving
from sssd.server.settings import Settings
from sssd.text import Tokenizer
from sssd.tree import chain_tree
from sssd.types import DraftJob, DraftTree, Int32, Source
from tests.helpers.scripts import HistoryDrafter
from tests.helpers.toy import EOS, TEMPLATE, text_bundle

VOCAB = 257
MARKS = b">:"  # an answer begins behind the last of these; texts hold none of them
TEXT = "Grüße aus Köln, 東京 und 🙂 - naïve café, ½ Tag 👩‍👩‍👧 später. "


def speaker(text: str = TEXT, *, end: int | None = None, marks: bytes = MARKS) -> Script:
    """A target that says `text` over and over behind the last mark, and ends after `end` bytes if given.

    What comes second is the byte before, so that logprobs and sampling have something to choose from.
    """
    data = text.encode()
    mark_ids = np.frombuffer(marks, np.uint8)

    def script(context: Int32) -> np.ndarray:
        places = np.flatnonzero(np.isin(context, mark_ids))
        at = len(context) - 1 - int(places[-1]) if len(places) else len(context)
        scores = np.full(VOCAB, -4, np.float32)
        scores[data[(at - 1) % len(data)]] = 1
        scores[EOS if at == end else data[at % len(data)]] = 3
        return scores

    return script


class Lucky(HistoryDrafter):
    """Drafts what a target will say for a random length, then something else: random accepted lengths."""

    def __init__(self, script: Script, seed: int = 0) -> None:
        super().__init__()
        self._script = script
        self._rng = np.random.default_rng(seed)

    def propose(self, jobs: Sequence[DraftJob]) -> list[DraftTree]:
        return [self._chain(self.history[job.request_id], job.budget) for job in jobs]

    def _chain(self, history: list[int], budget: int) -> DraftTree:
        right = int(self._rng.integers(0, budget + 1))
        context = list(history)
        for i in range(budget):
            best = int(self._script(np.array(context, np.int32)).argmax())
            context.append(best if i < right else (best + 1) % 256)
        tokens = np.array(context[len(history) :], np.int32)
        return chain_tree(tokens, np.ones(budget, np.float32), np.full(budget, Source.CONTEXT, np.uint8))


def scripted_model(
    directory: Path,
    script: Script,
    drafter: Drafter | None = None,
    *,
    max_len: int = 512,
    fails_at: frozenset[int] = frozenset(),
    n_slots: int = 4,
    max_waiting: int = 64,
    max_draft_tokens: int = 7,
    template: str | None = TEMPLATE,
) -> Model:
    engine = ScriptedEngine(
        script, vocab_size=VOCAB, n_slots=n_slots + 1, max_len=max_len, eos_ids=(EOS,), fails_at=fails_at
    )
    config = LoopConfig(n_slots=n_slots, n_warm=1, max_waiting=max_waiting, max_draft_tokens=max_draft_tokens)
    return Model(engine, drafter or NullDrafter(), Tokenizer(text_bundle(directory, template=template)), config)


def python_api(directory: Path, script: Script, **options: int) -> LLM:
    """The same target behind the Python API, decoding plainly."""
    return LLM(scripted_model(directory, script, **options))


@contextmanager
def served(model: Model, settings: Settings = Settings()) -> Iterator[str]:
    """The base URL of a server that runs on a thread until the block ends."""
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    with closing(Serving(model)) as serving:
        server = uvicorn.Server(uvicorn.Config(make_app(serving, settings), log_level="warning"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        while not server.started:
            time.sleep(0.005)
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join(10)
            listener.close()


def events(response: httpx.Response) -> Iterator[dict[str, Any]]:
    """The JSON of a stream's events, up to its proper end."""
    for line in response.iter_lines():
        if line == "data: [DONE]":
            return
        if line and not line.startswith(":"):
            assert line.startswith("data: ")
            yield json.loads(line[6:])
    raise AssertionError("the stream ended without [DONE]")

"""Retrieval that remembers: finished requests feed a live datastore, which later requests draft from.

Owns the two and what is saved between runs: the text in the live file, what the scores have learned beside it. Knows
neither how text is kept nor how it is found.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from sssd.drafting.retrieval import Retrieval, RetrievalConfig, Store
from sssd.drafting.store_live import LiveDatastore
from sssd.drafting.store_plan import LiveOptions
from sssd.types import DraftJob, DraftOptions, DraftTree, Int32


class Remembering:
    """A Drafter over `live`, a file that is opened or made. One process at a time may hold it.

    Raises DatastoreError, SpecMismatch (the file is of another tokenizer), RevisionMismatch or MissingExtra.
    """

    def __init__(
        self,
        live: Path,
        *,
        tokenizer: str,
        vocab_size: int,
        options: LiveOptions | None = None,
        config: RetrievalConfig | None = None,
    ) -> None:
        self._live = LiveDatastore(live, tokenizer=tokenizer, vocab_size=vocab_size, options=options)
        self._confidence = live.with_name(live.name + ".confidence")
        self._retrieval = Retrieval(config, memory=self._live)
        self._closed = False
        if self._confidence.exists():
            self._retrieval.load_confidence(self._confidence)
        self._live.subscribe(self._retrieval.publish)

    @property
    def live(self) -> LiveDatastore:
        """The store: its statistics, and erasing by request id."""
        return self._live

    @property
    def first_request_id(self) -> int:
        """From here on, request ids are not in the file yet."""
        largest = self._live.stats().holdings.largest_request
        return 0 if largest is None else largest + 1

    def attach(self, store: Store) -> None:
        """Draft from a datastore file as well."""
        self._retrieval.attach(store)

    def begin(self, request_id: int, prompt: Int32, options: DraftOptions) -> None:
        """Index the prompt. Raises RequestError if the id is in use or a namespace unknown."""
        self._retrieval.begin(request_id, prompt, options)

    def propose(self, jobs: Sequence[DraftJob]) -> list[DraftTree]:
        """One tree a job."""
        return self._retrieval.propose(jobs)

    def accept(self, request_id: int, tokens: Int32, tree: DraftTree) -> None:
        """Append committed tokens and learn from them."""
        self._retrieval.accept(request_id, tokens, tree)

    def end(self, request_id: int) -> None:
        """Remember the request, unless it opted out, and drop it."""
        self._retrieval.end(request_id)

    def check(self) -> list[str]:
        """All violations of both parts' invariants."""
        return [*self._retrieval.check(), *self._live.check()]

    def close(self) -> None:
        """Save what was learned, write what was remembered, release the file. Safe to call twice."""
        if not self._closed:
            self._closed = True
            self._retrieval.save_confidence(self._confidence)
            self._live.close()
            self._retrieval.close()

"""Which drafter replays which file: what `sssd replay` runs. Owns the drafters' names, nothing of how they work.

Knows no text and no file of a datastore: whoever replays gives an encoder and an open store.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Literal, get_args

import numpy as np

from sssd.bench.replay import Encode, Pair, ReplayRecord, ReplaySet, documents_segment, load_set, replay
from sssd.drafting.base import Drafter
from sssd.drafting.datastore import Datastore
from sssd.drafting.retrieval import DEFAULT_NAMESPACE, Retrieval, RetrievalConfig, Store
from sssd.drafting.rules import AuthorsRules, MixtureRules
from sssd.drafting.segments import Segment
from sssd.drafting.simple import MaxGram, PromptLookup
from sssd.errors import SssdError
from sssd.types import Int32, Source

DrafterName = Literal["retrieval", "maxgram", "lookup"]
RulesName = Literal["default", "sssd"]
_BRIDGE = 3  # prompt tokens kept in front of a finished answer


Stack = Callable[[Drafter], Drafter]


def unstacked(below: Drafter) -> Drafter:
    """No draft models over it."""
    return below


class DocumentStore:
    """Documents given as tokens, searchable in the default namespace. Implements Store; held in memory."""

    def __init__(self, documents: Sequence[Int32]) -> None:
        """Sort the suffixes: about 0.2 us a token. Raises MissingExtra without the sorter."""
        assert documents, "a store needs a document"
        self._segment = documents_segment(documents, Source.DATASTORE)

    @property
    def namespaces(self) -> tuple[str, ...]:
        """The default one alone."""
        return (DEFAULT_NAMESPACE,)

    def segments(self, namespace: str) -> tuple[Segment, ...]:
        """The one segment."""
        assert namespace == DEFAULT_NAMESPACE, f"no namespace {namespace!r}"
        return (self._segment,)

    def close(self) -> None:
        """Nothing to release."""


def open_documents(path: Path) -> DocumentStore:
    """A store of the documents that a token set (.npz) brings. Raises SssdError if it brings none."""
    documents = load_set(path).documents
    if not documents:
        raise SssdError(f"{path} brings no documents: give a token set with some in its array S")
    return DocumentStore(documents)


def open_store(path: Path, tokenizer: str) -> DocumentStore | Datastore:
    """A datastore file made with the tokenizer of this fingerprint, or an .npz token set's documents.

    The caller closes it. Raises SssdError, or one of those below it that `Datastore` names.
    """
    return open_documents(path) if path.suffix == ".npz" else Datastore(path, tokenizer=tokenizer)


def replay_files(
    files: Sequence[Path],
    *,
    encode: Encode | None = None,
    drafter: DrafterName = "retrieval",
    rules: RulesName = "default",
    budgets: Sequence[int] = (3, 7, 15, 31),
    store: Store | None = None,
    store_name: str | None = None,
    live: bool = False,
    learn: bool = True,
    limit: int | None = None,
    stack: Stack = unstacked,
    target_bytes: int = 0,
) -> list[ReplayRecord]:
    """One record a file and budget, each with a drafter that has seen nothing before.

    `store` is an open datastore, drafted from in its default namespace; `live` makes every answer searchable once it
    ended; `stack` puts draft models over each drafter. Raises SssdError for a name or file that cannot be used.
    """
    if drafter not in get_args(DrafterName) or rules not in get_args(RulesName):
        raise SssdError(
            f"no drafter {drafter!r} with rules {rules!r}: drafters are {', '.join(get_args(DrafterName))}, "
            f"rules {', '.join(get_args(RulesName))}"
        )
    if drafter != "retrieval" and (store is not None or live):
        raise SssdError(f"{drafter} drafts from the request alone: a datastore or live answers need retrieval")
    records = []
    for path in files:
        replayed = load_set(path, encode, limit=limit)
        for budget in budgets:
            if drafter == "retrieval":
                made = _retrieval(rules, learn, store)
                with closing(stack(made)) as stacked:
                    record = _replay_retrieval(made, replayed, budget, rules, store_name, live, stacked, target_bytes)
            else:
                with closing(stack(MaxGram() if drafter == "maxgram" else PromptLookup())) as stacked:
                    record = replay(stacked, replayed, budget=budget, name=drafter, target_bytes=target_bytes)
            records.append(record)
    return records


def _retrieval(rules: RulesName, learn: bool, store: Store | None) -> Retrieval:
    chosen = AuthorsRules() if rules == "sssd" else MixtureRules()
    retrieval = Retrieval(RetrievalConfig(rules=chosen, learn=learn))
    if store is not None:
        retrieval.attach(store)
    return retrieval


def _replay_retrieval(
    drafter: Retrieval,
    replayed: ReplaySet,
    budget: int,
    rules: RulesName,
    datastore: str | None,
    live: bool,
    stacked: Drafter,
    target_bytes: int,
) -> ReplayRecord:
    ended: list[Int32] = []

    def remember(pair: Pair) -> None:
        ended.append(np.concatenate([pair.prompt[-_BRIDGE:], pair.answer]))
        drafter.publish("live", [documents_segment(ended, Source.LIVE)])

    if live:
        drafter.publish("live", [])
    return replay(
        stacked,
        replayed,
        budget=budget,
        name="retrieval" if rules == "default" else "sssd",
        datastore=datastore,
        namespaces=(DEFAULT_NAMESPACE, "live") if live else (DEFAULT_NAMESPACE,),
        settle=drafter.settle,
        finished=remember if live else None,
        target_bytes=target_bytes,
    )

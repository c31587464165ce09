"""Which drafter replays which file: what `sssd replay` runs. Owns the drafters' names, nothing of how they work."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal, get_args

from sssd.bench.replay import Encode, Pair, ReplayRecord, ReplaySet, documents_segment, load_set, replay
from sssd.drafting.base import Drafter
from sssd.drafting.retrieval import Retrieval, RetrievalConfig, Store
from sssd.drafting.rules import AuthorsRules, MixtureRules
from sssd.drafting.simple import MaxGram, PromptLookup
from sssd.errors import SssdError
from sssd.types import Int32, Source

DrafterName = Literal["retrieval", "maxgram", "lookup"]
RulesName = Literal["default", "sssd"]
OWN_DOCUMENTS = "own"  # the datastore's name when a token set's own documents are drafted from
_BRIDGE = 3  # prompt tokens kept in front of a finished answer


def replay_files(
    files: Sequence[Path],
    *,
    encode: Encode | None = None,
    drafter: DrafterName = "retrieval",
    rules: RulesName = "default",
    budgets: Sequence[int] = (3, 7, 15, 31),
    store: Store | None = None,
    store_name: str | None = None,
    own_documents: bool = False,
    live: bool = False,
    learn: bool = True,
    limit: int | None = None,
) -> list[ReplayRecord]:
    """One record a file and budget, each with a drafter that has seen nothing before.

    `store` is an open datastore (in its "default" namespace); `own_documents` drafts from a token set's own documents;
    `live` makes every answer searchable once it ended. Raises SssdError for a name or file that cannot be used.
    """
    if drafter not in get_args(DrafterName) or rules not in get_args(RulesName):
        raise SssdError(
            f"no drafter {drafter!r} with rules {rules!r}: drafters are {', '.join(get_args(DrafterName))}, "
            f"rules {', '.join(get_args(RulesName))}"
        )
    if drafter != "retrieval" and (store is not None or own_documents or live):
        raise SssdError(f"{drafter} drafts from the request alone: a datastore or live answers need retrieval")
    records = []
    for path in files:
        replayed = load_set(path, encode, limit=limit)
        for budget in budgets:
            if drafter == "retrieval":
                documents = replayed.documents if own_documents else ()
                name = store_name if store is not None else OWN_DOCUMENTS if documents else None
                made = _retrieval(rules, learn, store, documents)
                records.append(_replay_retrieval(made, replayed, budget, rules, name, live))
            else:
                simple: Drafter = MaxGram() if drafter == "maxgram" else PromptLookup()
                records.append(replay(simple, replayed, budget=budget, name=drafter))
    return records


def _retrieval(rules: RulesName, learn: bool, store: Store | None, documents: Sequence[Int32]) -> Retrieval:
    chosen = AuthorsRules() if rules == "sssd" else MixtureRules()
    retrieval = Retrieval(RetrievalConfig(rules=chosen, learn=learn))
    if store is not None:
        retrieval.attach(store)
    if documents:
        retrieval.publish("default", [documents_segment(documents, Source.DATASTORE)])
    return retrieval


def _replay_retrieval(
    drafter: Retrieval, replayed: ReplaySet, budget: int, rules: RulesName, datastore: str | None, live: bool
) -> ReplayRecord:
    ended: list[Int32] = []

    def remember(pair: Pair) -> None:
        import numpy as np

        ended.append(np.concatenate([pair.prompt[-_BRIDGE:], pair.answer]))
        drafter.publish("live", [documents_segment(ended, Source.LIVE)])

    if live:
        drafter.publish("live", [])
    return replay(
        drafter,
        replayed,
        budget=budget,
        name="retrieval" if rules == "default" else "sssd",
        datastore=datastore,
        namespaces=("default", "live") if live else ("default",),
        settle=drafter.settle,
        finished=remember if live else None,
    )

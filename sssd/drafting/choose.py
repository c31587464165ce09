"""Drafters by name. Owns the names and what each may be given; knows nothing of how any of them works."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, get_args

from sssd.drafting.base import Drafter, NullDrafter
from sssd.errors import SssdError

DrafterName = Literal["retrieval", "maxgram", "prompt-lookup", "none"]


def make_drafter(
    name: str,
    *,
    datastore: Path | None = None,
    live: Path | None = None,
    tokenizer: str = "",
    vocab_size: int = 0,
) -> Drafter:
    """A new drafter.

    `datastore` is a file that retrieval drafts from too, `live` one in which it remembers finished requests;
    `tokenizer` is the fingerprint they must have, `vocab_size` what ids are below.
    Raises SssdError for an unknown name or a datastore where it is of no use, DatastoreError or SpecMismatch for one
    that cannot be used.
    """
    from sssd.drafting.simple import MaxGram, PromptLookup

    if name not in get_args(DrafterName):
        raise SssdError(f"drafter is {name!r}: allowed are {', '.join(get_args(DrafterName))}")
    if name == "retrieval":
        return _retrieval(datastore, live, tokenizer, vocab_size)
    if datastore is not None or live is not None:
        raise SssdError(f"drafter {name} cannot draft from a datastore: use retrieval, or leave the datastore out")
    if name == "none":
        return NullDrafter()
    return MaxGram() if name == "maxgram" else PromptLookup()


def _retrieval(datastore: Path | None, live: Path | None, tokenizer: str, vocab_size: int) -> Drafter:
    from sssd.drafting.datastore import Datastore
    from sssd.drafting.remembering import Remembering
    from sssd.drafting.retrieval import Retrieval

    if datastore is None:
        return Retrieval() if live is None else Remembering(live, tokenizer=tokenizer, vocab_size=vocab_size)
    with Datastore(datastore, tokenizer=tokenizer) as store:  # what is attached stays mapped
        drafter = Retrieval() if live is None else Remembering(live, tokenizer=tokenizer, vocab_size=vocab_size)
        drafter.attach(store)
    return drafter

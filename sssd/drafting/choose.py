"""Drafters by name. Owns the names and what each may be given; knows nothing of how any of them works."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, get_args

from sssd.drafting.base import Drafter, NullDrafter
from sssd.errors import SssdError

DrafterName = Literal["retrieval", "maxgram", "prompt-lookup", "none"]


def make_drafter(name: str, *, datastore: Path | None = None, tokenizer: str = "") -> Drafter:
    """A new drafter. `datastore` is a file that retrieval drafts from too; `tokenizer` is the fingerprint it must have.

    Raises SssdError for an unknown name or a datastore where it is of no use, DatastoreError or SpecMismatch for one
    that cannot be used.
    """
    from sssd.drafting.simple import MaxGram, PromptLookup

    if name not in get_args(DrafterName):
        raise SssdError(f"drafter is {name!r}: allowed are {', '.join(get_args(DrafterName))}")
    if name == "retrieval":
        return _retrieval(datastore, tokenizer)
    if datastore is not None:
        raise SssdError(f"drafter {name} cannot draft from a datastore: use retrieval, or leave the datastore out")
    if name == "none":
        return NullDrafter()
    return MaxGram() if name == "maxgram" else PromptLookup()


def _retrieval(datastore: Path | None, tokenizer: str) -> Drafter:
    from sssd.drafting.datastore import Datastore
    from sssd.drafting.retrieval import Retrieval

    drafter = Retrieval()
    if datastore is not None:
        with Datastore(datastore, tokenizer=tokenizer) as store:  # what is attached stays mapped
            drafter.attach(store)
    return drafter

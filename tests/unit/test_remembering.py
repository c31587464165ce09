from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest

from sssd.drafting.choose import make_drafter
from sssd.drafting.remembering import Remembering
from sssd.errors import DatastoreError, RequestError, SpecMismatch, SssdError
from sssd.types import DraftJob, DraftOptions, Source, empty_tree

TEXT = np.arange(100, 140, dtype=np.int32)


def opened(path: Path, tokenizer: str = "t") -> Remembering:
    return Remembering(path, tokenizer=tokenizer, vocab_size=1000)


def say(drafter: Remembering, request_id: int, options: DraftOptions) -> None:
    """A request of one prompt token whose answer is TEXT."""
    drafter.begin(request_id, np.array([7], np.int32), options)
    drafter.accept(request_id, TEXT, empty_tree())
    drafter.end(request_id)


def drafted(drafter: Remembering, request_id: int, options: DraftOptions) -> list[int]:
    """What is drafted behind the beginning of TEXT."""
    drafter.begin(request_id, TEXT[:6], options)
    tree = drafter.propose([DraftJob(request_id, 5)])[0]
    drafter.end(request_id)
    assert set(tree.source.tolist()) <= {Source.LIVE}
    return tree.tokens.tolist()


QUIET = DraftOptions(remember=False)


def test_a_finished_request_is_drafted_from_within_a_second_and_after_a_restart(tmp_path: Path) -> None:
    drafter = opened(tmp_path / "live")
    say(drafter, 3, DraftOptions())
    deadline = time.monotonic() + 1.0
    n = 10
    while drafted(drafter, n, QUIET) != TEXT[6:11].tolist():
        assert time.monotonic() < deadline, "not found within a second"
        n += 1
        time.sleep(0.02)
    assert drafter.check() == []
    drafter.close()
    drafter.close()
    again = opened(tmp_path / "live")
    assert again.first_request_id == 4
    assert drafted(again, 4, QUIET) == TEXT[6:11].tolist()
    again.close()


def test_namespaces_are_apart_and_a_request_may_opt_out(tmp_path: Path) -> None:
    drafter = opened(tmp_path / "live")
    say(drafter, 0, DraftOptions(namespaces=("mine",)))
    say(drafter, 1, QUIET)
    drafter.live.synchronize()
    assert drafted(drafter, 2, QUIET) == []
    assert drafted(drafter, 3, DraftOptions(namespaces=("mine",), remember=False)) == TEXT[6:11].tolist()
    with pytest.raises(RequestError, match="no namespace 'yours'"):
        drafter.begin(4, TEXT, DraftOptions(namespaces=("yours",), remember=False))
    drafter.close()


def test_erasing_by_request_id_leaves_nothing_to_draft_from(tmp_path: Path) -> None:
    drafter = opened(tmp_path / "live")
    say(drafter, 5, DraftOptions())
    drafter.live.synchronize()
    assert drafter.live.erase(5) == 1
    assert drafted(drafter, 6, QUIET) == []
    drafter.close()


def test_a_file_of_another_tokenizer_or_in_use_is_refused(tmp_path: Path) -> None:
    drafter = opened(tmp_path / "live")
    with pytest.raises(DatastoreError):
        opened(tmp_path / "live")
    drafter.close()
    with pytest.raises(SpecMismatch):
        opened(tmp_path / "live", "other")


def test_a_drafter_is_made_by_name_and_refuses_what_it_cannot_use(tmp_path: Path) -> None:
    for name in ("retrieval", "maxgram", "prompt-lookup", "none"):
        make_drafter(name).close()
    with pytest.raises(SssdError, match="allowed are retrieval, maxgram"):
        make_drafter("max-gram")
    with pytest.raises(SssdError, match="use retrieval"):
        make_drafter("maxgram", live=tmp_path / "live")
    with pytest.raises(DatastoreError):
        make_drafter("retrieval", datastore=tmp_path / "absent")

from __future__ import annotations

import errno
import os
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest

from sssd.drafting import datastore
from sssd.drafting import store_format as form
from sssd.drafting.datastore import Datastore
from sssd.errors import DatastoreError, RevisionMismatch
from tests.helpers.linear_store import live_documents

DOCUMENTS = [[1, 2, 3], [1, 2, 4], [5, 1, 2]]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A file of two commits after its creation."""
    path = tmp_path / "text.store"
    datastore.build(path, DOCUMENTS, tokenizer="vocab", vocab_size=10)
    datastore.add(path, [[7, 8, 9]], tokenizer="vocab")
    return path


def flip(path: Path, position: int) -> None:
    content = bytearray(path.read_bytes())
    content[position] ^= 0x10
    path.write_bytes(content)


def read_all(path: Path) -> list[list[int]]:
    with Datastore(path, tokenizer="vocab") as store:
        return live_documents(store.segments("default"))


def test_every_flipped_bit_is_seen_by_verify_or_refused_at_once(path: Path) -> None:
    whole = path.read_bytes()
    state_pages = range(form.DATA_START, len(whole), form.PAGE)
    meaningful = [*range(0, form.DATA_START, 293), *(p + i for p in state_pages for i in range(0, 64, 9))]
    expected = [*DOCUMENTS, [7, 8, 9]]
    n_seen = 0
    for position in meaningful:
        flip(path, position)
        try:
            report = datastore.inspect(path, verify=True)
            if report.problems:
                n_seen += 1
            else:
                assert read_all(path) == expected
        except DatastoreError:
            n_seen += 1
        path.write_bytes(whole)
    assert n_seen > len(meaningful) // 2


def test_a_flip_in_any_payload_is_named_by_verify_and_ignored_by_a_quick_inspect(path: Path) -> None:
    flip(path, form.DATA_START + form.PAGE)
    assert datastore.inspect(path).problems == ()
    assert "tokens are damaged" in datastore.inspect(path, verify=True).problems[0]


@pytest.mark.parametrize("page", [1, 2, 3, 4])
def test_either_copy_of_the_newest_commit_record_is_enough(path: Path, page: int) -> None:
    flip(path, page * form.PAGE + 10)
    assert read_all(path) == [*DOCUMENTS, [7, 8, 9]]
    assert f"page {page}" in datastore.inspect(path).problems[0]
    datastore.add(path, [[9, 9]], tokenizer="vocab")
    datastore.add(path, [[9, 8]], tokenizer="vocab")
    assert read_all(path) == [*DOCUMENTS, [7, 8, 9], [9, 9], [9, 8]]
    assert datastore.inspect(path, verify=True).problems == ()


def test_a_commit_that_was_torn_off_never_happened(path: Path) -> None:
    before = path.read_bytes()
    datastore.add(path, [[3, 3, 3]], tokenizer="vocab")
    after = path.read_bytes()
    newest = form.RECORD_PAGES[datastore.inspect(path).sequence % 2]
    for n_pages in range(form.DATA_START // form.PAGE, len(after) // form.PAGE + 1):
        torn = bytearray(after[: n_pages * form.PAGE])
        for page in newest:
            torn[page * form.PAGE : (page + 1) * form.PAGE] = before[page * form.PAGE : (page + 1) * form.PAGE]
        if len(torn) < len(before):
            continue
        path.write_bytes(torn)
        assert read_all(path) == [*DOCUMENTS, [7, 8, 9]]
        datastore.add(path, [[6]], tokenizer="vocab")
        assert read_all(path) == [*DOCUMENTS, [7, 8, 9], [6]]
        assert datastore.inspect(path, verify=True).problems == ()


def test_a_commit_torn_inside_its_first_record_copy_never_happened(path: Path) -> None:
    before = path.read_bytes()
    datastore.add(path, [[3, 3, 3]], tokenizer="vocab")
    after = bytearray(path.read_bytes())
    first, second = form.RECORD_PAGES[datastore.inspect(path).sequence % 2]
    after[first * form.PAGE + 20 : (first + 1) * form.PAGE] = b"\0" * (form.PAGE - 20)
    after[second * form.PAGE : (second + 1) * form.PAGE] = before[second * form.PAGE : (second + 1) * form.PAGE]
    path.write_bytes(after)
    assert read_all(path) == [*DOCUMENTS, [7, 8, 9]]


def test_a_truncated_file_is_refused_wherever_it_was_cut(path: Path) -> None:
    whole = path.read_bytes()
    for size in (0, 4, 100, form.PAGE, form.PAGE + 1, form.DATA_START, len(whole) - form.PAGE, len(whole) - 1):
        path.write_bytes(whole[:size])
        with pytest.raises(DatastoreError):
            Datastore(path, tokenizer="vocab")
        with pytest.raises(DatastoreError):
            datastore.add(path, [[1]], tokenizer="vocab")
        assert path.stat().st_size == size


def test_all_commit_records_damaged_is_an_error(path: Path) -> None:
    for page in (1, 2, 3, 4):
        flip(path, page * form.PAGE)
    with pytest.raises(DatastoreError, match="every commit record is damaged"):
        datastore.inspect(path)


def test_an_unknown_version_is_refused_by_its_number(path: Path) -> None:
    page = bytearray(path.read_bytes()[: form.PAGE])
    struct.pack_into("<I", page, 8, 7)
    struct.pack_into("<I", page, form.PAGE - 4, zlib.crc32(page[:-4]))
    path.write_bytes(bytes(page) + path.read_bytes()[form.PAGE :])
    with pytest.raises(RevisionMismatch, match="version 7, this sssd reads version 1"):
        Datastore(path, tokenizer="vocab")


def test_other_files_are_not_taken_for_datastores(tmp_path: Path) -> None:
    for content in (b"", b"hello", b"\0" * 100_000):
        other = tmp_path / "other"
        other.write_bytes(content)
        with pytest.raises(DatastoreError, match="is not a datastore file"):
            datastore.inspect(other)


def test_a_missing_file_a_directory_and_a_missing_folder_are_named(tmp_path: Path) -> None:
    with pytest.raises(DatastoreError, match=r"cannot open .*missing: No such file"):
        Datastore(tmp_path / "missing", tokenizer="vocab")
    with pytest.raises(DatastoreError, match="Is a directory"):
        datastore.inspect(tmp_path)
    with pytest.raises(DatastoreError, match="No such file"):
        datastore.build(tmp_path / "no" / "folder", DOCUMENTS, tokenizer="vocab", vocab_size=10)
    with pytest.raises(DatastoreError, match="No such file"):
        datastore.add(tmp_path / "missing", DOCUMENTS, tokenizer="vocab")


def test_a_damaged_document_table_is_refused_before_it_is_used(path: Path) -> None:
    entry = _entries(path)[0]
    flip(path, entry.offset + entry.documents_at + form.DOCUMENT.itemsize + 1)
    with pytest.raises(DatastoreError, match="document table is damaged"):
        datastore.compact(path)


def test_a_full_disk_is_named_and_costs_nothing_that_was_committed(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    size, limit = path.stat().st_size, [path.stat().st_size]
    real = os.pwrite

    def full(fd: int, data: memoryview, offset: int) -> int:
        if offset >= limit[0]:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(fd, data, offset)

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(DatastoreError, match=r"cannot write .*: No space left on device"):
        datastore.add(path, [[1, 1, 1]], tokenizer="vocab")
    limit[0] = form.DATA_START + form.PAGE
    with pytest.raises(DatastoreError, match="No space left"):
        datastore.compact(path)
    monkeypatch.undo()
    assert path.stat().st_size == size
    assert read_all(path) == [*DOCUMENTS, [7, 8, 9]]
    assert sorted(file.name for file in path.parent.iterdir()) == ["text.store", "text.store.lock"]


def test_short_writes_are_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda fd, data, offset: real(fd, data[:1000], offset))
    path = tmp_path / "text.store"
    document = np.arange(5000, dtype=np.int32) % 10
    datastore.build(path, [document], tokenizer="vocab", vocab_size=10)
    assert read_all(path) == [document.tolist()]
    assert datastore.inspect(path, verify=True).problems == ()


def test_no_permission_is_named(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(file: Path, flags: int, mode: int = 0o777) -> int:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(DatastoreError, match=r"cannot write .*text.store: Permission denied"):
        datastore.add(path, [[1]], tokenizer="vocab")


def _entries(path: Path) -> tuple[form.Entry, ...]:
    from sssd.drafting.store_file import open_file, read_state

    with open_file(path) as file:
        return read_state(file, path).entries

"""Writing a datastore file: the writer's lock, appending payloads, committing, replacing the file as a whole.

Owns the order of writes that makes a kill harmless; knows nothing of what segments mean.
"""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO, Self

import numpy as np

from sssd.drafting import store_format as form
from sssd.drafting.store_documents import Batch
from sssd.drafting.store_file import State, checksum, explained, read_state
from sssd.errors import DatastoreError
from sssd.types import Int32

_PIECE_BYTES = 16 << 20  # written and made durable at once, so that no other writer's sync waits for a long queue


def beside(path: Path) -> Path:
    """Where a file is written that takes the place of the one at `path` once it is complete."""
    return path.with_name(path.name + ".new")


class WriterLock:
    """The right to write one datastore: held by one process, given back by the kernel when that process dies.

    It lives in a file beside the datastore because the datastore itself may be replaced.
    """

    def __init__(self, path: Path) -> None:
        self._path = path.with_name(path.name + ".lock")
        with explained(path, "write"):
            self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
            try:
                fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                os.close(self._fd)
                if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
                    raise
                raise DatastoreError(f"{path} is being written by another process: wait for it or stop it") from error
        with explained(path, "write"):  # what a killed writer left unfinished
            beside(path).unlink(missing_ok=True)
            beside(beside(path)).unlink(missing_ok=True)

    def release(self) -> None:
        """Let others write. Safe to call twice. The lock file stays: removing it would let two writers in."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


class StoreWriter:
    """Appends to one file. The caller holds the WriterLock. One thread commits; `write_payload` may run in another."""

    def __init__(self, path: Path, file: BinaryIO, state: State) -> None:
        self.path = path
        self.file = file
        self.state = state
        self._end = form.aligned(state.record.end, form.PAGE)  # bytes that are committed or promised to a writer

    @classmethod
    def create(cls, path: Path, header: form.Header, *, sequence: int = 0) -> StoreWriter:
        """A new, empty, committed file, written beside and renamed; replaces what was there."""
        page = form.header_page(header)
        record = form.Record(sequence, form.DATA_START, len(form.directory_block(())), form.DATA_START + form.PAGE)
        with explained(path, "create"):
            with beside(path).open("wb") as file:
                file.write(page + form.record_page(record) * 4)
                file.write(form.directory_block(()).ljust(form.PAGE, b"\0"))
                file.flush()
                os.fsync(file.fileno())
            os.replace(beside(path), path)
            _sync_directory(path)
        return cls.open(path)

    @classmethod
    def open(cls, path: Path) -> StoreWriter:
        """An existing file; bytes that no commit owns (a killed writer's) are cut off."""
        with explained(path, "write"):
            file = path.open("r+b", buffering=0)
        try:
            state = read_state(file, path)
            with explained(path, "write"):
                os.ftruncate(file.fileno(), state.record.end)
        except BaseException:
            file.close()
            raise
        return cls(path, file, state)

    @property
    def file_bytes(self) -> int:
        """Bytes of the file, promised ones included."""
        return self._end

    def reserve(self, n_bytes: int) -> int:
        """Promise `n_bytes` to one `write_payload`; where they start."""
        offset = self._end
        self._end += form.aligned(n_bytes, form.PAGE)
        return offset

    def append(self, namespace: str, batch: Batch, suffixes: Int32 | None) -> form.Entry:
        """Write one payload at the end; nothing is committed. Raises DatastoreError when the disk is full."""
        indexed = suffixes is not None
        offset = self.reserve(payload_bytes(len(batch.tokens), len(batch.documents), indexed=indexed))
        return self.write_payload(offset, namespace, batch, suffixes)

    def write_payload(self, offset: int, namespace: str, batch: Batch, suffixes: Int32 | None) -> form.Entry:
        """Write one payload into reserved bytes, durably. Safe beside commits of another thread."""
        entry = _entry_of(offset, namespace, batch, suffixes)
        with explained(self.path, "write"):
            self._write(offset, batch.tokens)
            if suffixes is not None:
                self._write(offset + entry.suffixes_at, suffixes)
            self._write(offset + entry.documents_at, batch.documents)
        return entry

    def copy_payload(self, source: BinaryIO, entry: form.Entry) -> form.Entry:
        """Append the payload of another file's entry as it stands."""
        offset = self.reserve(entry.n_bytes)
        with explained(self.path, "write"):
            done = 0
            while done < entry.n_bytes:
                piece = os.pread(source.fileno(), min(_PIECE_BYTES, entry.n_bytes - done), entry.offset + done)
                assert piece
                self._write(offset + done, np.frombuffer(piece, np.uint8))
                done += len(piece)
                if entry.n_bytes > _PIECE_BYTES:
                    os.fsync(self.file.fileno())
        return replace(entry, offset=offset)

    def sync(self) -> None:
        """Make everything written durable, so that the next commit does not wait for it."""
        with explained(self.path, "write"):
            os.fsync(self.file.fileno())

    def commit(self, entries: Sequence[form.Entry]) -> None:
        """From here on the file holds exactly `entries`. Two disk syncs. Raises DatastoreError: nothing changed."""
        block = form.directory_block(tuple(entries))
        offset = self.reserve(len(block))
        record = form.Record(
            self.state.record.sequence + 1, offset, len(block), offset + form.aligned(len(block), form.PAGE)
        )
        fd = self.file.fileno()
        with explained(self.path, "write"):
            _write_all(fd, memoryview(block.ljust(record.end - offset, b"\0")), offset)
            os.fsync(fd)
            for page in form.RECORD_PAGES[record.sequence % 2]:
                _write_all(fd, memoryview(form.record_page(record)), page * form.PAGE)
            os.fsync(fd)
        self.state = State(self.state.header, record, tuple(entries), (), self.state.inode)

    def move(self, path: Path) -> None:
        """Rename the file to `path`, atomically, in place of what is there; readers keep what they have mapped."""
        with explained(path, "replace"):
            os.replace(self.path, path)
            _sync_directory(path)
        self.path = path

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Gives back what was reserved and written inside, when an exception leaves it; what was committed stays."""
        mark = self._end
        try:
            yield
        except BaseException:
            self._end = max(mark, form.aligned(self.state.record.end, form.PAGE))
            with suppress(OSError):  # a broken disk: the next opening cuts them
                if os.fstat(self.file.fileno()).st_size > self._end:
                    os.ftruncate(self.file.fileno(), self._end)
            raise

    def discard(self) -> None:
        """Close and remove the file, which nobody has begun to use."""
        self.close()
        self.path.unlink(missing_ok=True)

    def close(self) -> None:
        """Close the file. Safe to call twice."""
        self.file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _write(self, offset: int, array: np.ndarray) -> None:
        view = np.ascontiguousarray(array).view(np.uint8).reshape(-1).data
        for start in range(0, len(view), _PIECE_BYTES):
            _write_all(self.file.fileno(), view[start : start + _PIECE_BYTES], offset + start)
            if len(view) > _PIECE_BYTES:
                os.fsync(self.file.fileno())


def payload_bytes(n_tokens: int, n_documents: int, *, indexed: bool) -> int:
    """What a payload of so many tokens (separators included) and documents takes in a file."""
    n_suffixes = n_tokens - n_documents if indexed else 0
    return form.aligned(4 * n_tokens, 64) + form.aligned(4 * n_suffixes, 64) + form.DOCUMENT.itemsize * n_documents


def _entry_of(offset: int, namespace: str, batch: Batch, suffixes: Int32 | None) -> form.Entry:
    stored = np.zeros(0, np.int32) if suffixes is None else suffixes
    sums = form.Checksums(checksum(batch.tokens), checksum(stored), checksum(batch.documents))
    times = batch.documents["time_ms"]
    return form.Entry(
        namespace=namespace,
        indexed=suffixes is not None,
        offset=offset,
        n_tokens=len(batch.tokens),
        n_documents=len(batch.documents),
        checksums=sums,
        largest_request=int(batch.documents["request_id"].max()),
        oldest_ms=int(times.min()),
        newest_ms=int(times.max()),
    )


def _write_all(fd: int, data: memoryview, offset: int) -> None:
    while len(data):
        written = os.pwrite(fd, data, offset)
        data, offset = data[written:], offset + written


def _sync_directory(path: Path) -> None:
    fd = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)

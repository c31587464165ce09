"""API keys: who may ask, in which namespaces, and how much. Owns the keys file and the comparison.

Knows no HTTP. A key's text is forgotten as soon as its sha256 is known, so it can stand in no log, error or memory dump
of a traceback.

    keys:
      - name: editor
        key: sk-...                    # or  key-sha256: 64 hex digits, so that the file holds no secret
        namespaces: [editor, shared]   # the first one is its own: answers are remembered there
        requests-at-once: 4
        requests-per-minute: 120
        max-tokens: 1024
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from sssd.errors import ConfigError
from sssd.server.yamlfile import Entry, Mistakes, read_mapping

_HEX = re.compile(r"[0-9a-f]{64}")
_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")
_LIMITS = ("requests-at-once", "requests-per-minute", "max-tokens")
_FIELDS = ("name", "key", "key-sha256", "namespaces", *_LIMITS)
_LEAST_KEY = 16  # characters


@dataclass(frozen=True, slots=True)
class ApiKey:
    """One client: what it is called in logs, and what it may do."""

    name: str
    digest: bytes  # sha256 of the key
    namespaces: tuple[str, ...] = ("default",)  # it drafts from these; the first is where its answers are remembered
    requests_at_once: int | None = None  # None = as many as there is room for
    requests_per_minute: int | None = None
    max_tokens: int | None = None  # most tokens of one answer


def digest_of(key: str) -> bytes:
    """What is kept of a key."""
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()


class KeyRing:
    """All keys of a server."""

    def __init__(self, keys: Sequence[ApiKey]) -> None:
        assert keys, "no key at all would let nobody in"
        self._keys = tuple(keys)

    def __len__(self) -> int:
        return len(self._keys)

    def find(self, given: str) -> ApiKey | None:
        """The client whose key this is. Takes the same time whichever it is and however much of it is right."""
        digest = digest_of(given)
        found = None
        for key in self._keys:
            if hmac.compare_digest(key.digest, digest):
                found = key
        return found


def read_keys(path: Path) -> KeyRing:
    """The keys of a file. Raises ConfigError with every mistake and its line; a key itself is never repeated."""
    top = read_mapping(path)
    mistakes = Mistakes(path)
    for name, entry in top.items():
        if name != "keys":
            mistakes.unknown(name, entry.line, ["keys"])
    listed = top.get("keys", Entry(1, None))
    if not isinstance(listed.value, list) or not listed.value:
        mistakes.add(listed.line, "keys must hold a list with at least one key")
        mistakes.raise_any()
    keys = [_key(entry, mistakes) for entry in listed.value]
    _no_twins(keys, listed.value, mistakes)
    mistakes.raise_any()
    return KeyRing(keys)


def _key(entry: Entry, mistakes: Mistakes) -> ApiKey:
    fields = entry.value
    if not isinstance(fields, dict):
        mistakes.add(entry.line, "a key is a mapping with name and key")
        return ApiKey("", b"")
    for name, field in fields.items():
        if name not in _FIELDS:
            mistakes.unknown(name, field.line, list(_FIELDS))
    name = fields.get("name", Entry(entry.line, None))
    if not isinstance(name.value, str) or not _NAME.fullmatch(name.value):
        mistakes.add(name.line, "name must be 1 to 64 letters, digits, dots, dashes or underscores")
    limits = {field: _positive(field, fields, mistakes) for field in _LIMITS}
    return ApiKey(
        str(name.value),
        _digest(entry, mistakes),
        _namespaces(fields, mistakes),
        limits["requests-at-once"],
        limits["requests-per-minute"],
        limits["max-tokens"],
    )


def _digest(entry: Entry, mistakes: Mistakes) -> bytes:
    given = [f for f in ("key", "key-sha256") if f in entry.value]
    if len(given) != 1:
        mistakes.add(entry.line, "give either key or key-sha256")
        return b""
    field = entry.value[given[0]]
    if given[0] == "key":
        if not isinstance(field.value, str) or len(field.value) < _LEAST_KEY:
            mistakes.add(field.line, f"key must be text of at least {_LEAST_KEY} characters")
            return b""
        return digest_of(field.value)
    if not isinstance(field.value, str) or not _HEX.fullmatch(field.value.lower()):
        mistakes.add(field.line, "key-sha256 must be 64 hexadecimal digits")
        return b""
    return bytes.fromhex(field.value)


def _namespaces(fields: dict[str, Entry], mistakes: Mistakes) -> tuple[str, ...]:
    if "namespaces" not in fields:
        return ("default",)
    field = fields["namespaces"]
    names = [e.value for e in field.value] if isinstance(field.value, list) else [field.value]
    if not names or not all(isinstance(n, str) and n for n in names):
        mistakes.add(field.line, "namespaces must be a list of names")
        return ()
    return tuple(names)


def _positive(name: str, fields: dict[str, Entry], mistakes: Mistakes) -> int | None:
    if name not in fields:
        return None
    field = fields[name]
    if not isinstance(field.value, str) or not re.fullmatch(r"[1-9][0-9]{0,8}", field.value):
        mistakes.add(field.line, f"{name} must be a whole number above 0")
        return None
    return int(field.value)


def _no_twins(keys: Sequence[ApiKey], entries: Sequence[Entry], mistakes: Mistakes) -> None:
    names: set[str] = set()
    digests: set[bytes] = set()
    for key, entry in zip(keys, entries, strict=True):
        if key.name in names:
            mistakes.add(entry.line, f"name {key.name} is given twice")
        if key.digest and key.digest in digests:
            mistakes.add(entry.line, f"{key.name} has the key of another client")
        names.add(key.name)
        digests.add(key.digest)


def readable_by_others(path: Path) -> bool:
    """Whether other users of the machine can read the file."""
    try:
        return bool(path.stat().st_mode & 0o077)
    except OSError as e:
        raise ConfigError(f"cannot read {path}: {e.strerror}") from None

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from sssd.errors import ConfigError
from sssd.server.keys import ApiKey, digest_of, read_keys, readable_by_others
from sssd.server.limits import Limits

SECRET = "sk-0123456789abcdefX"
GOOD = f"""\
keys:
  - name: editor
    key: {SECRET}
    namespaces: [editor, shared]
    requests-at-once: 4
    requests-per-minute: 120
    max-tokens: 1024
  - name: batch
    key-sha256: {hashlib.sha256(b"another secret of its own").hexdigest().upper()}
"""


def refusal(tmp_path: Path, text: str) -> str:
    path = tmp_path / "keys.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        read_keys(path)
    message = str(caught.value)
    assert SECRET not in message
    assert SECRET[3:] not in message
    return message


def test_a_keys_file_says_who_may_do_what(tmp_path: Path) -> None:
    path = tmp_path / "keys.yaml"
    path.write_text(GOOD)
    ring = read_keys(path)
    assert len(ring) == 2
    assert ring.find(SECRET) == ApiKey("editor", digest_of(SECRET), ("editor", "shared"), 4, 120, 1024)
    batch = ring.find("another secret of its own")
    assert batch is not None
    assert (batch.name, batch.namespaces, batch.max_tokens) == ("batch", ("default",), None)
    assert ring.find(SECRET + "x") is None
    assert ring.find(SECRET[:-1]) is None
    assert ring.find("") is None
    assert ring.find("\udcff\u20ac") is None  # whatever bytes a client sends


def test_a_key_cannot_be_shown(tmp_path: Path) -> None:
    path = tmp_path / "keys.yaml"
    path.write_text(GOOD)
    found = read_keys(path).find(SECRET)
    assert SECRET not in repr(found)


def test_every_mistake_is_named_with_its_line(tmp_path: Path) -> None:
    text = GOOD.replace("name: editor", "name: ed itor").replace("requests-at-once: 4", "request-at-once: 4")
    text = text.replace("max-tokens: 1024", "max-tokens: -3").replace("key-sha256: ", "key-sha256: zz")
    message = refusal(tmp_path, text)
    assert "line 2: name must be" in message
    assert "line 5: request-at-once is not known: did you mean requests-at-once?" in message
    assert "line 7: max-tokens must be a whole number above 0" in message
    assert "line 9: key-sha256 must be 64 hexadecimal digits" in message


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "line 1: keys must hold a list"),
        ("keys: []", "line 1: keys must hold a list"),
        ("kyes: []", "line 1: kyes is not known: did you mean keys?"),
        (f"- {SECRET}\n", "line 1: names with values are expected"),
        (f"keys:\n  - {SECRET}\n", "line 2: a key is a mapping"),
        (f"keys:\n  - name: a\n    key: '{SECRET}\n", "no YAML"),
        (f"keys:\n  - name: a\n\tkey: {SECRET}\n", "line 3: no YAML"),
        (f"keys:\n  - name: a\n    key: {SECRET}\n    key: {SECRET}\n", "line 4: key is given twice"),
        (f"keys:\n  - name: a\n    key: {SECRET}\n    key-sha256: 00\n", "line 2: give either key or key-sha256"),
        ("keys:\n  - name: a\n", "line 2: give either key or key-sha256"),
        ("keys:\n  - name: a\n    key: short\n", "line 3: key must be text of at least 16 characters"),
        (
            f"keys:\n  - {{name: a, key: {SECRET}}}\n  - {{name: b, key: {SECRET}}}\n",
            "line 3: b has the key of another",
        ),
        (f"keys:\n  - {{name: a, key: {SECRET}}}\n  - {{name: a, key: {SECRET}1}}\n", "line 3: name a is given twice"),
        (f"keys:\n  - {{name: a, key: {SECRET}, namespaces: []}}\n", "line 2: namespaces must be a list of names"),
    ],
)
def test_an_ill_formed_keys_file_is_refused(tmp_path: Path, text: str, says: str) -> None:
    assert says in refusal(tmp_path, text)


def test_a_keys_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot read .*absent: No such file"):
        read_keys(tmp_path / "absent")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="no UTF-8"):
        read_keys(tmp_path / "binary")
    (tmp_path / "odd").write_bytes(b"keys: \x01")
    with pytest.raises(ConfigError, match="is no YAML"):
        read_keys(tmp_path / "odd")


def test_a_file_that_others_can_read_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text(GOOD)
    path.chmod(0o600)
    assert not readable_by_others(path)
    path.chmod(0o640)
    assert readable_by_others(path)


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_key_runs_no_more_requests_at_once_than_it_may() -> None:
    limits = Limits(Clock())
    key, other = ApiKey("a", b"", requests_at_once=2), ApiKey("b", b"")
    assert limits.enter(key) is None
    assert limits.enter(key) is None
    refused = limits.enter(key)
    assert refused is not None
    assert refused == ("key a may run 2 requests at once", 1)
    assert limits.enter(other) is None
    limits.leave(key)
    assert limits.enter(key) is None


def test_a_key_starts_no_more_requests_a_minute_than_it_may() -> None:
    clock = Clock()
    limits = Limits(clock)
    key = ApiKey("a", b"", requests_per_minute=6)
    entered = [limits.enter(key) for _ in range(7)]
    assert entered[:6] == [None] * 6
    assert entered[6] == ("key a may start 6 requests a minute", 10)
    clock.now = 9.0
    assert limits.enter(key) == ("key a may start 6 requests a minute", 1)
    clock.now = 10.0
    assert limits.enter(key) is None
    clock.now = 1000.0  # a bucket never holds more than a minute's requests
    assert [limits.enter(key) for _ in range(7)][6] is not None

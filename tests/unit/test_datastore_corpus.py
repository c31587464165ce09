from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import pytest

from sssd.drafting import store_corpus
from sssd.drafting.store_corpus import read_corpus, tokenize
from sssd.errors import DatastoreError

DIALOGUE = [
    {"role": "system", "content": "be brief"},
    {"role": "user", "content": "hello"},
    {"role": "assistant", "content": "hi"},
    {"role": "assistant", "content": None, "tool_calls": []},
    {"role": "assistant", "content": [{"type": "text", "text": "a"}, {"type": "image"}, {"type": "text", "text": "b"}]},
]


def jsonl(path: Path, *records: object) -> str:
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    return str(path)


def test_a_text_field_is_one_document(tmp_path: Path) -> None:
    given = jsonl(tmp_path / "a.jsonl", {"text": "one\ntwo", "messages": 3}, {"text": "drei ä"})
    assert list(read_corpus([given])) == ["one\ntwo", "drei ä"]


def test_only_assistant_turns_are_stored_unless_all_are_asked_for(tmp_path: Path) -> None:
    given = jsonl(tmp_path / "a.jsonl", {"messages": DIALOGUE})
    assert list(read_corpus([given])) == ["hi", "", "ab"]
    assert list(read_corpus([given], turns="all")) == ["be brief", "hello", "hi", "", "ab"]


def test_a_plain_file_is_one_document_as_it_stands(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"line\r\nline\n")
    assert list(read_corpus([str(tmp_path / "a.txt")])) == ["line\r\nline\n"]


def test_a_directory_gives_all_its_visible_files_sorted(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "config").write_text("hidden")
    (tmp_path / "z.py").write_text("code")
    jsonl(tmp_path / "b" / "a.ndjson", {"text": "record"})
    assert list(read_corpus([str(tmp_path)])) == ["record", "code"]


def test_standard_input_is_jsonl_or_text_as_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO('{"text": "a"}\n\n{"text": "b"}\n'))
    assert list(read_corpus(["-"])) == ["a", "b"]
    monkeypatch.setattr(sys, "stdin", io.StringIO('{"text": "a"}\n'))
    assert list(read_corpus(["-"], stdin_format="text")) == ['{"text": "a"}\n']


def test_long_text_is_cut_at_the_last_line_break_before_the_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_corpus, "MOST_CHARACTERS", 10)
    (tmp_path / "a.txt").write_text("abc\ndefg\nhijklmnopqrstuvw\nxyz", encoding="utf-8")
    expected = ["abc\ndefg\n", "hijklmnopq", "rstuvw\nxyz"]
    assert list(read_corpus([str(tmp_path / "a.txt")])) == expected
    given = jsonl(tmp_path / "a.jsonl", {"text": "abc\ndefg\nhijklmnopqrstuvw\nxyz"})
    assert list(read_corpus([given])) == expected


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("{", "is not JSON"),
        ("[1]", "has no text"),
        ('{"prompt": "x"}', "has no text"),
        ('{"text": 3}', "has no text"),
        ('{"messages": [{"content": "x"}]}', "without a role"),
        ('{"messages": ["x"]}', "without a role"),
        ('{"messages": [{"role": "assistant", "content": 3}]}', "content is no text"),
    ],
)
def test_a_bad_record_is_named_by_file_and_line(tmp_path: Path, line: str, problem: str) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "fine"}\n' + line + "\n")
    with pytest.raises(DatastoreError, match=f"a.jsonl:2 .*{problem}"):
        list(read_corpus([str(path)]))


def test_what_cannot_be_read_is_said_before_anything_is_read(tmp_path: Path) -> None:
    with pytest.raises(DatastoreError, match="does not exist: give"):
        read_corpus([str(tmp_path / "missing")])
    with pytest.raises(DatastoreError, match="holds no files"):
        read_corpus([str(tmp_path)])


def test_a_binary_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.bin").write_bytes(b"\xff\xfe\x00\x80")
    with pytest.raises(DatastoreError, match="is not UTF-8 text"):
        list(read_corpus([str(tmp_path / "a.bin")]))


def test_tokenizing_in_batches_gives_what_one_call_gives(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_corpus, "_BATCH_CHARACTERS", 8)
    sizes: list[int] = []

    def encode(texts: list[str]) -> list[list[int]]:
        sizes.append(len(texts))
        return [[ord(c) for c in text] for text in texts]

    texts = ["abc", "", "defgh", "i", "jklmnopqrst", "u"]
    rows = [row.tolist() for row in tokenize(texts, encode)]
    assert rows == [[ord(c) for c in text] for text in texts]
    assert sizes == [3, 2, 1]


def test_recorded_answers_are_documents_and_their_prompts_only_when_all_turns_are_asked_for(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    file.write_text('{"prompt": "p", "answer": "a"}\n{"prompt": "q", "answer": ["b", "c"]}\n')
    assert list(read_corpus([str(file)])) == ["a", "b", "c"]
    assert list(read_corpus([str(file)], turns="all")) == ["p", "a", "q", "b", "c"]

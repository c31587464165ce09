from __future__ import annotations

from pathlib import Path

import pytest

from sssd.errors import BundleError, ExportError, RevisionMismatch
from sssd.spec import MANIFEST, TOKENIZER, open_bundle, staged_directory, verify_files
from tests.helpers.toy import text_bundle


def test_a_manifest_reads_back_as_it_was_written(tmp_path: Path) -> None:
    written = text_bundle(tmp_path)
    assert open_bundle(tmp_path) == written
    assert verify_files(written) == []


def test_a_file_inside_the_bundle_names_the_bundle(tmp_path: Path) -> None:
    text_bundle(tmp_path)
    assert open_bundle(tmp_path / TOKENIZER).path == tmp_path


def test_a_changed_byte_is_found_by_its_hash(tmp_path: Path) -> None:
    bundle = text_bundle(tmp_path)
    data = bytearray(bundle.file(TOKENIZER).read_bytes())
    data[100] ^= 1
    bundle.file(TOKENIZER).write_bytes(data)
    assert [p for p in verify_files(open_bundle(tmp_path)) if TOKENIZER in p]


def test_every_missing_or_truncated_file_is_named_at_once(tmp_path: Path) -> None:
    bundle = text_bundle(tmp_path)
    bundle.file(TOKENIZER).write_bytes(b"{}")
    bundle.file("chat_template.jinja").unlink()
    with pytest.raises(BundleError, match=r"chat_template.jinja is missing.*tokenizer.json has 2 bytes"):
        open_bundle(tmp_path)


@pytest.mark.parametrize("revision", ["format_revision", "layout_revision"])
def test_a_newer_revision_is_refused(tmp_path: Path, revision: str) -> None:
    text_bundle(tmp_path)
    path = tmp_path / MANIFEST
    path.write_text(path.read_text().replace(f'"{revision}": 1', f'"{revision}": 99'))
    with pytest.raises(RevisionMismatch, match="99"):
        open_bundle(tmp_path)


def test_what_is_no_bundle_says_how_to_make_one(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match="sssd export"):
        open_bundle(tmp_path)
    with pytest.raises(BundleError, match="no bundle at"):
        open_bundle(tmp_path / "absent")
    (tmp_path / MANIFEST).write_text("{")
    with pytest.raises(BundleError, match="is not a manifest"):
        open_bundle(tmp_path)


def fill(staged: Path) -> None:
    (staged / MANIFEST).write_text("new")


def interrupted(out: Path, *, force: bool) -> None:
    def work() -> None:
        with staged_directory(out, force=force) as staged:
            fill(staged)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        work()


def test_a_staged_directory_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    out = tmp_path / "deep" / "out"
    interrupted(out, force=False)
    assert list((tmp_path / "deep").iterdir()) == []
    with staged_directory(out, force=False) as staged:
        fill(staged)
        assert not out.exists()
    assert [p.name for p in out.parent.iterdir()] == ["out"]


def test_an_existing_directory_is_replaced_with_force_only(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / MANIFEST).write_text("old")
    with pytest.raises(ExportError, match="--force"), staged_directory(out, force=False) as staged:
        fill(staged)
    interrupted(out, force=True)
    assert (out / MANIFEST).read_text() == "old"
    with staged_directory(out, force=True) as staged:
        fill(staged)
    assert (out / MANIFEST).read_text() == "new"
    assert [p.name for p in tmp_path.iterdir()] == ["out"]


def test_force_never_deletes_what_is_not_a_bundle(tmp_path: Path) -> None:
    out = tmp_path / "photos"
    out.mkdir()
    (out / "a.jpg").write_text("x")
    with pytest.raises(ExportError, match="not a bundle"), staged_directory(out, force=True) as staged:
        fill(staged)
    assert (out / "a.jpg").exists()

"""Hub ids: what is asked of huggingface_hub, and what is said when it fails."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from sssd.errors import MissingExtra
from sssd.export import hub
from sssd.export.checkpoint import open_checkpoint
from tests.helpers.tiny_directory import refusal, write_directory


class FakeHub:
    """Stands in for huggingface_hub: hands out a directory, or raises."""

    def __init__(self, outcome: Path | Exception) -> None:
        self.outcome = outcome
        self.asked: list[tuple[str, list[str]]] = []

    def snapshot_download(self, repo_id: str, allow_patterns: list[str]) -> str:
        self.asked.append((repo_id, allow_patterns))
        if isinstance(self.outcome, Exception):
            raise self.outcome
        return str(self.outcome)


class HubErrors:
    class HfHubHTTPError(Exception):
        pass

    class LocalEntryNotFoundError(FileNotFoundError):
        pass


def install(monkeypatch: pytest.MonkeyPatch, fake: object, errors: object) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", fake)
    monkeypatch.setitem(sys.modules, "huggingface_hub.errors", errors)


def test_a_hub_id_is_downloaded_and_gives_the_model_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeHub(write_directory(tmp_path / "snapshot"))
    install(monkeypatch, fake, HubErrors)
    assert open_checkpoint("some-org/some.model").name == "some-org/some.model"
    assert fake.asked == [("some-org/some.model", list(hub.FILES))]


def test_only_files_that_are_read_are_downloaded() -> None:
    assert not any(Path("pytorch_model.bin").match(p) or Path("consolidated.safetensors").match(p) for p in hub.FILES)
    for needed in ("config.json", "tokenizer.json", "model-00001-of-00002.safetensors", "model.safetensors.index.json"):
        assert any(Path(needed).match(pattern) for pattern in hub.FILES)


@pytest.mark.parametrize(
    ("error", "part"),
    [
        (HubErrors.LocalEntryNotFoundError("offline"), "hub cannot be reached"),
        (HubErrors.HfHubHTTPError("404 not found\nmore"), "404 not found"),
        (OSError("disk full"), "disk full"),
    ],
)
def test_a_failed_download_is_one_line(error: Exception, part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, FakeHub(error), HubErrors)
    assert part in refusal("org/model")


def test_without_huggingface_hub_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, None, None)
    with pytest.raises(MissingExtra, match=r"sssd\[hub\]"):
        open_checkpoint("org/model")


def test_a_path_wins_over_a_hub_id_of_the_same_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, None, None)
    (tmp_path / "org").mkdir()
    write_directory(tmp_path / "org" / "model")
    monkeypatch.chdir(tmp_path)
    assert open_checkpoint("org/model").name == "model"

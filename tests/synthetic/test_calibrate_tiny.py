"""calibrate and plan on a tiny exported model, as a user runs them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from sssd.cli import main
from sssd.runtime.calibration import CALIBRATION
from sssd.spec import open_bundle, verify_files
from tests.helpers.tiny_directory import write_directory


def sssd(*args: str | Path) -> Result:
    return CliRunner().invoke(main, [str(a) for a in args])


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("tiny")
    write_directory(directory / "model")
    assert sssd("export", directory / "model", "--out", directory / "bundle").exit_code == 0
    return directory / "bundle"


def test_a_bundle_is_calibrated_planned_with_and_replaced(tiny: Path) -> None:
    done = sssd("calibrate", tiny, "--slots", "2", "--seconds", "1", "--json")
    assert done.exit_code == 0, done.output
    figures = json.loads(done.stdout)
    assert figures["batches"] == [1, 2]
    assert figures["widths"] == [1, 2, 4, 8, 16, 32]
    assert figures["rounds"] >= 5
    assert all(t > 0 for grid in figures["seconds"] for line in grid for t in line)
    assert verify_files(open_bundle(tiny)) == []
    planned = sssd("plan", tiny, "--json")
    assert planned.exit_code == 0, planned.output
    assert [b["batch"] for b in json.loads(planned.stdout)["batches"]] == [1, 2]
    again = sssd("export", tiny.parent / "model", "--out", tiny, "--force")
    assert again.exit_code == 0, again.output
    assert not (tiny / CALIBRATION).exists(), "what was measured belonged to the bundle that was replaced"


def test_the_table_names_every_width_and_batch(tiny: Path) -> None:
    shown = sssd("calibrate", tiny, "--slots", "1", "--seconds", "1").stdout.splitlines()
    assert shown[1].split() == ["batch", "1", "2", "4", "8", "16", "32"]
    assert shown[2].split()[0] == "1"

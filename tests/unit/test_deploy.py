"""What deploy/ and docs/operations.md promise must be what the program takes and says."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import click
import pytest

from sssd.commands.config_file import option_names, read_config
from sssd.commands.serve import serve
from sssd.server.gauges import Gauges
from sssd.server.keys import read_keys
from sssd.server.meter import Meter
from sssd.server.prometheus import registry
from tests.helpers.data import ROOT
from tests.helpers.gauges import LIVE, LOOP, STORE

DEPLOY = ROOT / "deploy"
PAGE = (ROOT / "docs" / "operations.md").read_text("utf-8")


def test_the_example_configuration_is_one(tmp_path: Path) -> None:
    text = (DEPLOY / "serve.yaml").read_text("utf-8")
    everything = tmp_path / "serve.yaml"
    everything.write_text(re.sub(r"^#(?=\S+:)", "", text, flags=re.M))
    for path in (DEPLOY / "serve.yaml", everything):
        values = read_config(path, serve, click.Context(serve))
        assert values["names"] == ("local",)
    assert len(values) == len(everything.read_text().splitlines()) - 1


def test_the_example_keys_are_keys() -> None:
    assert len(read_keys(DEPLOY / "keys.yaml")) == 1


def test_options_that_the_page_names_are_there() -> None:
    named = set(re.findall(r"`--([a-z-]+)", PAGE))
    assert named - {"config", "check"} <= set(option_names(serve)) | {"json"}


def test_numbers_that_the_page_names_are_there() -> None:
    families = registry(Meter(), lambda: Gauges("toy", True, LOOP, STORE, LIVE)).collect()
    names = {f.name for f in families}
    named = {n.removesuffix("_total") for n in re.findall(r"`(sssd:[a-z_]+)", PAGE)}
    assert len(named) > 25
    assert named <= names


@pytest.mark.parametrize("script", ["pack.sh", "install.sh"])
def test_scripts_say_how_they_are_used(script: str) -> None:
    done = subprocess.run([DEPLOY / script], capture_output=True, text=True)
    assert done.returncode == 2
    assert script in done.stderr


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd-analyze here")
def test_the_unit_is_sound() -> None:
    done = subprocess.run(["systemd-analyze", "verify", DEPLOY / "sssd.service"], capture_output=True, text=True)
    said = [line for line in done.stderr.splitlines() if "is not executable" not in line]  # nothing is installed here
    assert said == []

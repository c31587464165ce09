"""scripts/gpu_check.py where there is no GPU: every step is a line, whatever happens in it."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest

PATH = Path(__file__).parents[2] / "scripts" / "gpu_check.py"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("gpu_check", PATH)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["gpu_check"] = module  # where its dataclass looks for its own module
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("code", "ok", "told"),
    [
        ("print('{\"a\": 1}')", True, {"a": 1}),
        ("print('two'); print('lines')", True, ["two", "lines"]),
        ("raise SystemExit('no way')", False, "status 1 | no way"),
        ("import os; os.abort()", False, "crashed with signal 6"),
        ("import time; time.sleep(60)", False, "took longer than 2 s"),
    ],
)
def test_whatever_a_step_does_is_a_line(script: ModuleType, code: str, ok: bool, told: object) -> None:
    line = script.run_step(script.Step("x", (sys.executable, "-c", code), 2), left=100)
    assert line["ok"] is ok
    assert line["result" if ok else "error"] == told


def test_a_command_that_is_not_there_and_no_time_left_are_lines(script: ModuleType) -> None:
    assert "No such file" in script.run_step(script.Step("x", ("/no/such",), 9), left=100)["error"]
    assert script.run_step(script.Step("x", ("/no/such",), 9), left=0.5)["error"] == "no time was left"


def test_limits_of_all_steps_are_told_and_named_once(script: ModuleType, tmp_path: Path) -> None:
    steps = script.steps("source", tmp_path)
    assert len({s.name for s in steps}) == len(steps)
    assert {s.needs for s in steps} == {"NVIDIA driver", "ONNX Runtime, CUDA", "TensorRT", "TensorRT-RTX"}


def test_without_a_driver_all_steps_are_passed_over(
    script: ModuleType, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = {"parts": [{"name": "NVIDIA driver", "works": False}, {"name": "TensorRT-RTX", "works": True}]}
    monkeypatch.setattr(script, "run_step", lambda step, left: {"step": step.name, "ok": True, "result": found})
    script.main(["--out", str(tmp_path / "lines")])
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["step"] for line in lines if "skipped" not in line] == ["doctor"]
    assert len(lines) == 1 + len(script.steps("s", tmp_path))
    assert (tmp_path / "lines").read_text().count("\n") == len(lines)

"""`sssd doctor`: what it finds, what it advises, and that whatever a library does is a finding."""

from __future__ import annotations

import json
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from sssd.cli import main
from sssd.doctor import probes, report
from sssd.doctor.probes import Answer, answer, examine
from sssd.doctor.report import Report, examine_machine
from sssd.errors import BundleError
from sssd.plan import PlanInfo
from sssd.spec import Bundle, open_bundle, write_manifest
from tests.helpers.toy import text_bundle
from tests.unit.test_plan import PLAN

GPU = {"number": 0, "name": "RTX 4000", "compute_capability": "8.9", "memory": 20 << 30}
WORKS = {
    "driver": Answer(True, "CUDA 13.0", [GPU]),
    "onnxruntime:CPUExecutionProvider": Answer(True, "1.32.0"),
    "onnxruntime:CUDAExecutionProvider": Answer(True, "1.32.0"),
    "tensorrt:tensorrt": Answer(True, PLAN.version),
    "tensorrt:rtx": Answer(True, "1.7.1.116"),
}


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Packages that count as installed."""
    packages = {"onnxruntime-gpu", "tensorrt", "tensorrt-rtx"}

    def found(*names: str) -> str | None:
        return "1" if packages & set(names) else None

    monkeypatch.setattr(report, "_installed", found)
    return packages


def examined(bundle: Path | None = None, *, n_slots: int | None = None, **answers: Answer) -> Report:
    told = WORKS | {name.replace("_", ":"): a for name, a in answers.items()}
    return examine_machine(bundle, n_slots=n_slots, probe=lambda name: told[name])


def planned(tmp_path: Path, plan: PlanInfo = PLAN) -> Bundle:
    text_bundle(tmp_path)
    (tmp_path / plan.file).write_bytes(b"x" * 1000)
    (tmp_path / plan.graph).write_bytes(b"x")
    write_manifest(tmp_path, replace(open_bundle(tmp_path).manifest, plan=plan))
    return open_bundle(tmp_path)


def test_a_machine_that_runs_everything_needs_no_advice(installed: set[str]) -> None:
    found = examined()
    assert found.advice == ()
    assert [(g.name, g.compute_capability) for g in found.gpus] == [("RTX 4000", "8.9")]
    assert all(part.works for part in found.parts)


def test_without_a_driver_no_package_for_gpus_is_advised(installed: set[str]) -> None:
    found = examined(driver=Answer(False, "there is no NVIDIA driver here"))
    assert found.advice == ("no GPU can be used: there is no NVIDIA driver here",)
    assert found.gpus == ()


def test_what_is_missing_is_named_with_its_extra(installed: set[str]) -> None:
    installed.clear()
    assert [line.split(":  ")[1] for line in examined().advice] == [
        "pip install 'sssd[cpu]'",
        "pip install 'sssd[gpu]'",
        "pip install 'sssd[tensorrt]', or 'sssd[rtx]' on RTX GPUs",
    ]


def test_two_packages_of_onnx_runtime_hide_one_another(installed: set[str]) -> None:
    installed.add("onnxruntime")
    assert any("hides onnxruntime-gpu" in line for line in examined().advice)


def test_a_plan_needs_its_own_tensorrt(installed: set[str], tmp_path: Path) -> None:
    bundle = planned(tmp_path).path
    (line,) = examined(bundle, tensorrt_tensorrt=Answer(False, "libnvinfer.so.11: cannot open")).advice
    assert line == ("toy.plan needs TensorRT 11.4.0.106 (libnvinfer.so.11: cannot open):  pip install 'sssd[tensorrt]'")
    (line,) = examined(bundle, tensorrt_tensorrt=Answer(True, "10.16.1.11")).advice
    assert line.startswith(
        "toy.plan was built with TensorRT 11.4.0.106, installed is 10.16.1.11: rebuild it with  sssd"
    )


def test_a_bundle_is_held_against_the_memory_of_its_device(installed: set[str], tmp_path: Path) -> None:
    bundle = planned(tmp_path)
    slot = PLAN.kv_bytes(bundle.spec.n_layers, bundle.spec.n_kv_heads, bundle.spec.head_dim)
    small = GPU | {"memory": 1000 + 3 * slot}
    found = examined(bundle.path, n_slots=4, driver=Answer(True, "CUDA 13.0", [small]))
    assert found.bundle is not None
    assert (found.bundle.runs_on, found.bundle.kv_slot, found.bundle.slots_that_fit) == ("tensorrt", slot, 3)
    assert found.bundle.total == 1000 + 4 * slot
    (line,) = found.advice
    assert "of device memory: 3 slots fit" in line


def test_a_bundle_of_the_cpu_is_held_against_main_memory(installed: set[str], tmp_path: Path) -> None:
    bundle = text_bundle(tmp_path)
    found = examined(bundle.path)
    assert found.bundle is not None
    assert (found.bundle.runs_on, found.bundle.memory) == ("cpu", found.memory)
    assert found.advice == ()


def test_a_bundle_that_is_none_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match="no bundle at"):
        examined(tmp_path / "none")


# ---- probes ---------------------------------------------------------------------------------------


def python(code: str) -> tuple[str, ...]:
    return (sys.executable, "-c", code)


def test_a_probe_that_crashes_its_process_is_a_finding() -> None:
    code = "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)"
    assert examine("x", command=python(code)) == Answer(False, "crashed with signal 11 when it was loaded")


def test_a_probe_that_hangs_is_a_finding() -> None:
    found = examine("x", seconds=0.2, command=python("import time; time.sleep(60)"))
    assert found == Answer(False, "gave no answer within 0 s")


@pytest.mark.parametrize(
    ("code", "told"),
    [
        ("raise SystemExit('no such thing')", "ended with status 1: no such thing"),
        ("print('not json')", "ended with status 0: it said nothing"),
        ("print('[1, 2, 3, 4]')", "ended with status 0: it said nothing"),
    ],
)
def test_a_probe_that_does_not_answer_is_a_finding(code: str, told: str) -> None:
    assert examine("x", command=python(code)) == Answer(False, told)


def test_what_a_library_prints_is_no_answer() -> None:
    found = examine("onnxruntime:CPUExecutionProvider")
    assert found.works
    assert found == Answer(*json.loads(json.dumps(answer("onnxruntime:CPUExecutionProvider"))))


def test_a_provider_that_is_not_in_the_build_does_not_work() -> None:
    assert answer("onnxruntime:NoSuchExecutionProvider") == Answer(False, "not in this build")


def test_what_a_library_raises_is_its_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(name: str) -> object:
        raise ImportError("libcublasLt.so.13:\n cannot open")

    monkeypatch.setattr(probes, "import_module", broken)
    assert answer("onnxruntime:CPUExecutionProvider") == Answer(False, "libcublasLt.so.13: cannot open")


def test_the_driver_is_asked_without_a_gpu() -> None:
    found = answer("driver")
    assert found.works == (shutil.which("nvidia-smi") is not None)
    assert found.told


# ---- the command ----------------------------------------------------------------------------------


def test_the_command_shows_and_prints_what_was_found(installed: set[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sssd.doctor.report.examine_machine", lambda bundle, *, n_slots: examined())
    shown = CliRunner().invoke(main, ["doctor"])
    assert shown.exit_code == 0
    assert "TensorRT-RTX:       works: 1.7.1.116" in shown.stdout
    printed = CliRunner().invoke(main, ["doctor", "--json"])
    assert json.loads(printed.stdout)["gpus"][0]["name"] == "RTX 4000"

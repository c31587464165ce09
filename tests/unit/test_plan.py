"""A plan in a manifest, and the machines that it runs on."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from sssd.errors import SpecMismatch
from sssd.plan import PORTABLE, Machine, PlanInfo, PlanProfile, Span, require_runs
from sssd.spec import Bundle, open_bundle, write_manifest
from tests.helpers.toy import text_bundle

ONE = Span(1, 1, 1)
PLAN = PlanInfo(
    file="toy.plan",
    graph="toy.trt.onnx",
    flavour="tensorrt",
    version="11.4.0.106",
    compute_capability="9.0",
    profiles=(
        PlanProfile("prompt", ONE, Span(1, 128, 256), Span(1, 1, 32)),
        PlanProfile("tree", Span(1, 4, 8), Span(1, 16, 32), Span(1, 16, 32)),
    ),
    n_slots=8,
    max_len=4096,
    cache_len=4352,
    max_width=32,
    chunk=256,
    kv_dtype="float16",
)
HERE = Machine("tensorrt", "11.4.0.106", "9.0")


def test_a_plan_reads_back_as_it_was_written_and_is_found_by_its_file(tmp_path: Path) -> None:
    bundle = text_bundle(tmp_path)
    bundle.file(PLAN.file).write_bytes(b"plan")
    written = write_manifest(tmp_path, replace(bundle.manifest, plan=PLAN))
    assert open_bundle(tmp_path / PLAN.file) == Bundle(tmp_path, written)
    assert written.plan == PLAN


def test_a_bundle_without_a_plan_has_none(tmp_path: Path) -> None:
    text_bundle(tmp_path)
    assert open_bundle(tmp_path).manifest.plan is None


@pytest.mark.parametrize(
    ("machine", "told"),
    [
        (HERE._replace(version="10.16.1.11"), "TensorRT 10.16.1.11 for compute capability 9.0"),
        (HERE._replace(compute_capability="8.9"), "TensorRT 11.4.0.106 for compute capability 8.9"),
        (HERE._replace(flavour="rtx"), "TensorRT-RTX 11.4.0.106"),
    ],
)
def test_a_plan_from_elsewhere_is_refused_with_the_command_that_rebuilds_it(machine: Machine, told: str) -> None:
    with pytest.raises(SpecMismatch) as caught:
        require_runs(PLAN, machine, bundle="toy/")
    message = str(caught.value)
    assert "built with TensorRT 11.4.0.106 for compute capability 9.0" in message
    assert told in message
    assert message.endswith(
        "sssd export toy/ --target tensorrt --flavour tensorrt --slots 8 --max-len 4096 --max-width 32 --chunk 256 "
        "--out toy/ --force"
    )


def test_a_portable_plan_runs_on_any_gpu_of_its_version() -> None:
    plan = replace(PLAN, flavour="rtx", compute_capability=PORTABLE)
    require_runs(plan, Machine("rtx", PLAN.version, "12.0"), bundle="toy/")
    with pytest.raises(SpecMismatch, match="for any GPU that it knows"):
        require_runs(plan, Machine("rtx", "1.6.1.120", "12.0"), bundle="toy/")


def test_the_same_machine_runs_its_plan() -> None:
    require_runs(PLAN, HERE, bundle="toy/")


def test_kv_bytes_are_those_of_the_whole_cache() -> None:
    assert PLAN.kv_bytes(n_layers=2, n_kv_heads=4, head_dim=64) == 2 * 2 * 4 * 4352 * 64 * 2

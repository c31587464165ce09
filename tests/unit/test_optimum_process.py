"""The process that traces: what is said when it is not there, refuses, dies, or was never needed."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

import sssd
from sssd.errors import ExportError, MissingExtra, UnsupportedModel
from sssd.export import export_model
from sssd.export.optimum import environment
from sssd.export.optimum.job import Refused, Stage, TraceJob
from sssd.export.optimum.refusals import REFUSED
from tests.helpers.tiny_directory import refusal, write_directory

JOB = TraceJob(sssd.__version__, "model", "out", None, None)


def script(path: Path, text: str) -> Path:
    """An interpreter that is none."""
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def said(*messages: Stage | Refused) -> str:
    return "\n".join(f"echo '{msgspec.json.encode(m).decode()}'" for m in messages)


def test_stages_are_passed_on_and_the_job_arrives(tmp_path: Path) -> None:
    python = script(tmp_path / "python", f"cat > {tmp_path}/job\n{said(Stage('trace', 0, 2), Stage('trace', 2, 2))}")
    seen: list[tuple[str, int, int]] = []
    environment.run(JOB, python, lambda *stage: seen.append(stage))
    assert seen == [("trace", 0, 2), ("trace", 2, 2)]
    assert msgspec.json.decode((tmp_path / "job").read_bytes(), type=TraceJob) == JOB


@pytest.mark.parametrize(
    ("body", "kind", "says"),
    [
        (said(Refused("it has no head")) + "\nexit 1", UnsupportedModel, "model cannot be exported.*it has no head"),
        ("echo 'first' >&2; echo 'last words' >&2; exit 3", ExportError, "ended with status 3: last words"),
        ("kill -9 $$", ExportError, "ended by signal 9, perhaps for want of memory"),
        (
            "echo \"ModuleNotFoundError: No module named 'sssd'\" >&2; exit 1",
            ExportError,
            r"pip install 'sssd\[optimum\]'",
        ),
    ],
)
def test_whatever_ends_it_is_one_line(tmp_path: Path, body: str, kind: type[ExportError], says: str) -> None:
    python = script(tmp_path / "python", f"cat > /dev/null\n{body}")
    with pytest.raises(kind, match=says) as caught:
        environment.run(JOB, python, lambda *_: None)
    assert "\n" not in str(caught.value)


def test_an_interpreter_that_dies_before_it_reads_its_job_is_named(tmp_path: Path) -> None:
    with pytest.raises(ExportError, match="the tracing process ended with status 4"):
        environment.run(JOB, script(tmp_path / "python", "exit 4"), lambda *_: None)


def test_an_absent_interpreter_and_absent_packages_say_how_to_get_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ExportError, match=r"is no file.*python -m venv optimum"):
        environment.interpreter(tmp_path / "nowhere")
    monkeypatch.setattr(environment, "find_spec", lambda name: None)
    with pytest.raises(MissingExtra, match=r"torch, transformers, .*--optimum-python"):
        environment.interpreter(None)


@pytest.mark.parametrize("model_type", ["deepseek_v3", "mpt", "gemma3n", "mamba"])
def test_what_cannot_be_traced_is_refused_by_name_before_anything_is_started(tmp_path: Path, model_type: str) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": model_type}))
    never = script(tmp_path / "python", "exit 9")
    with pytest.raises(UnsupportedModel, match=REFUSED[model_type]):
        export_model(tmp_path, tmp_path / "out", exporter="optimum", optimum_python=never)
    assert not (tmp_path / "out").exists()


def test_an_unknown_family_is_told_of_the_other_exporter(tmp_path: Path) -> None:
    message = refusal(write_directory(tmp_path / "model", model_type="bloom"), UnsupportedModel)
    assert "--exporter optimum" in message


def test_a_failed_trace_leaves_nothing_behind(tmp_path: Path) -> None:
    write_directory(tmp_path / "model")
    python = script(tmp_path / "python", "cat > /dev/null; exit 1")
    with pytest.raises(ExportError, match="status 1"):
        export_model(tmp_path / "model", tmp_path / "out" / "b", exporter="optimum", optimum_python=python)
    assert list((tmp_path / "out").iterdir()) == []


def test_options_that_do_not_go_together_are_refused(tmp_path: Path) -> None:
    write_directory(tmp_path / "model")
    with pytest.raises(ExportError, match="the exporter is native"):
        export_model(tmp_path / "model", tmp_path / "b", optimum_python="python")
    with pytest.raises(ExportError, match="no model directory"):
        export_model(tmp_path / "x.gguf", tmp_path / "b", exporter="optimum")

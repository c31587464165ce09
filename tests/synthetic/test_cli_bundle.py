"""The commands on a tiny exported model, as a user runs them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

from sssd import SamplingParams, load
from sssd.cli import main
from sssd.errors import BundleError, EngineError
from sssd.spec import WEIGHTS
from tests.helpers.tiny_directory import CONFIG, declare, tensors_of, write_directory

SSSD = [sys.executable, "-c", "from sssd.cli import main; main()"]


def sssd(*args: str | Path, stdin: str | bytes | None = None) -> Result:
    return CliRunner().invoke(main, [str(a) for a in args], input=stdin)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("tiny")
    write_directory(directory / "model")
    done = sssd("export", directory / "model", "--out", directory / "bundle")
    assert done.exit_code == 0, done.output
    assert done.stdout.strip() == str(directory / "bundle")
    return directory / "bundle"


def test_inspect_check_and_generate_work_on_what_export_made(tiny: Path) -> None:
    assert json.loads(sssd("inspect", tiny, "--json").stdout)["spec"]["max_len"] == 64
    checked = sssd("check", tiny)
    assert checked.exit_code == 0, checked.output
    assert "largest difference" in checked.stdout
    done = sssd("generate", "--engine", tiny / WEIGHTS, "--max-tokens", "12", "--ignore-eos", "--json", "a b c")
    assert len(json.loads(done.stdout)["token_ids"]) == 12


def test_the_answer_streams_to_stdout_and_statistics_to_stderr(tiny: Path) -> None:
    args = ("generate", "--engine", tiny, "--max-tokens", "8", "--ignore-eos")
    plain = sssd(*args, "--no-spec", "a b c")
    with_stats = sssd(*args, "--stats", "-", stdin="a b c")
    assert with_stats.stdout == plain.stdout
    assert plain.stderr == ""
    assert "tokens per step" in with_stats.stderr
    assert "accepted   0:" in with_stats.stderr


def test_a_second_export_needs_force_and_leaves_the_first_alone(tiny: Path) -> None:
    before = (tiny / "manifest.json").read_bytes()
    again = sssd("export", tiny.parent / "model", "--out", tiny)
    assert again.exit_code == 1
    assert "--force" in again.stderr
    assert (tiny / "manifest.json").read_bytes() == before
    assert sssd("export", tiny.parent / "model", "--out", tiny, "--force").exit_code == 0
    assert sorted(p.name for p in tiny.parent.iterdir()) == ["bundle", "model"]


def test_a_flipped_byte_is_found_by_check(tiny: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    subprocess.run(["cp", "-r", tiny, copy], check=True)
    data = bytearray((copy / WEIGHTS).read_bytes())
    data[-5] ^= 0x40
    (copy / WEIGHTS).write_bytes(data)
    found = sssd("check", copy)
    assert found.exit_code == 1
    assert f"{WEIGHTS}: sha256" in found.stderr


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (("",), "prompt is empty"),
        (("--chat", "hi"), "no chat template"),
        (("--max-tokens", "64", "a b c"), "exceed the bundle's 64 tokens"),
        (("--drafter", "nope", "hi"), "Invalid value for '--drafter'"),
        (("--threads", "-1", "hi"), "Invalid value for '--threads'"),
    ],
)
def test_a_bad_request_is_one_clear_line(tiny: Path, args: tuple[str, ...], says: str) -> None:
    done = sssd("generate", "--engine", tiny, *args)
    assert done.exit_code != 0
    assert says in done.stderr
    assert done.stdout == ""
    assert "Traceback" not in done.stderr


def test_a_prompt_that_is_not_utf8_is_refused(tiny: Path) -> None:
    done = sssd("generate", "--engine", tiny, stdin=b"\xff\xfe")
    assert done.exit_code == 1
    assert "UTF-8" in done.stderr


def test_a_device_that_is_not_there_is_an_error_and_no_fallback(tiny: Path) -> None:
    pytest.importorskip("cuda.bindings")
    with pytest.raises(EngineError, match="there is no NVIDIA driver here: install one"):
        load(tiny, device="cuda")
    with pytest.raises(EngineError, match="allowed are cpu, cuda"):
        load(tiny, device="tpu")


def test_a_graph_that_does_not_load_is_a_bundle_error(tiny: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    subprocess.run(["cp", "-r", tiny, copy], check=True)
    size = (copy / "model.onnx").stat().st_size
    (copy / "model.onnx").write_bytes(b"\0" * size)
    with pytest.raises(BundleError, match="cannot load"):
        load(copy)


def test_an_interrupted_export_leaves_nothing(tmp_path: Path) -> None:
    fields = {"hidden_size": 512, "intermediate_size": 2048, "num_hidden_layers": 8, "num_attention_heads": 8}
    write_directory(tmp_path / "model", tensors_of(declare(**(CONFIG | fields))), **fields)
    for delay in (0.2, 0.5, 1.0, 1.5):
        out = tmp_path / "out" / str(delay)
        process = subprocess.Popen(
            [*SSSD, "export", str(tmp_path / "model"), "--out", str(out)], stderr=subprocess.PIPE, text=True
        )
        deadline = time.monotonic() + 60
        while process.poll() is None and not list(out.parent.glob(".*.partial")) and time.monotonic() < deadline:
            time.sleep(0.01)  # until the work has begun
        time.sleep(delay / 5)
        os.kill(process.pid, signal.SIGINT)
        _, err = process.communicate(timeout=60)
        if process.returncode == 0:
            continue  # it was done before the signal came
        assert process.returncode == 130, err
        assert "Traceback" not in err
        assert list(out.parent.iterdir()) == []
        return
    pytest.fail("every export ended before it could be interrupted")


def test_the_cache_is_written_in_place_and_grows(tiny: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with load(tiny, n_slots=3, max_draft_tokens=3) as llm:
        prompts = [np.arange(5, 5 + n, dtype=np.int32) for n in (3, 9, 20)]
        together = llm.generate(prompts, SamplingParams(max_tokens=40, ignore_eos=True))
    for prompt, done in zip(prompts, together, strict=True):
        with load(tiny, n_slots=1, drafter=None) as llm:
            assert llm.generate(prompt, SamplingParams(max_tokens=40, ignore_eos=True)).token_ids == done.token_ids
    assert "copying" not in capfd.readouterr().err, "ONNX Runtime says that the cache is not updated in place"


def test_streams_can_be_read_in_turns_and_closed_early(tiny: Path) -> None:
    params = SamplingParams(max_tokens=20, ignore_eos=True)
    with load(tiny, n_slots=2) as llm:
        expected = [llm.generate(p, params) for p in ("a b", "c d e")]
        one, two = llm.stream("a b", params), llm.stream("c d e", params)
        pieces = [[next(one), next(two)] for _ in range(2)]
        rest = list(two)
        one.close()
        text = "".join(p.text for _, p in pieces) + "".join(p.text for p in rest)
        assert text == expected[1].text
        assert rest[-1].completion is not None
        assert rest[-1].completion.token_ids == expected[1].token_ids
        assert llm.generate("a b", params).token_ids == expected[0].token_ids
    with pytest.raises(EngineError, match="closed"):
        llm.generate("a b", params)

"""Plans built by TensorRT-RTX, which needs no GPU: every family and weight type, what is checked, what goes wrong."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest
from click.testing import CliRunner, Result

from sssd.cli import main
from sssd.engines.scripted import scripted_spec
from sssd.errors import ExportError, MissingExtra
from sssd.export.families import FAMILIES
from sssd.export.tensorrt import builder
from sssd.export.tensorrt.builder import BuildJob, build_plan
from sssd.export.tensorrt.checks import network_problems
from sssd.export.tensorrt.plan_bundle import prepare_job, require_builder
from sssd.export.tensorrt.worker import build_apart
from sssd.plan import PORTABLE
from sssd.spec import GRAPH, WeightType, open_bundle
from tests.helpers.plans import FAMILY_FIELDS, OPTIONS, SIZES, family, portable_bundle
from tests.helpers.random_decoders import RandomWeights, with_own_blocks
from tests.helpers.tiny_directory import declare, tensors_of, write_directory

pytest.importorskip("tensorrt_rtx")
pytestmark = pytest.mark.tensorrt


def job_of(tmp_path: Path, name: str = "llama", *, stored: WeightType = "fp16", **options: Any) -> BuildJob:
    made = portable_bundle(tmp_path / "b", family(name), stored=stored, **options)
    return prepare_job(made.path, "tiny", made.manifest, OPTIONS, made.spec.max_len)


def built(job: BuildJob) -> Path:
    """The plan; that every cache is aliased and every attention fused is checked on the way."""
    phases: list[tuple[str, int, int]] = []
    build_plan(job, lambda *phase: phases.append(phase))
    assert phases
    assert all(0 < done <= of for _, done, of in phases)
    return Path(job.directory, job.plan.file)


def test_the_families_are_all_there() -> None:
    assert set(FAMILY_FIELDS) == set(FAMILIES)


@pytest.mark.parametrize("name", FAMILIES)
def test_every_family_builds_with_two_profiles(tmp_path: Path, name: str) -> None:
    assert built(job_of(tmp_path, name)).stat().st_size > 100_000


@pytest.mark.parametrize("stored", ["bf16", "int8", "int4", "fp8"])
def test_every_weight_type_builds(tmp_path: Path, stored: WeightType) -> None:
    built(job_of(tmp_path, "qwen2", stored=stored))


def test_the_checkpoints_own_blocks_with_offsets_build(tmp_path: Path) -> None:
    built(job_of(tmp_path, stored="int4", weights=with_own_blocks(family("llama"), 4, offsets=True)))


class InBfloat16(RandomWeights):
    """A checkpoint that was saved in bfloat16."""

    def load(self, name: str) -> Any:
        import ml_dtypes

        return super().load(name).astype(ml_dtypes.bfloat16)


def test_quantized_weights_compute_in_the_checkpoints_own_16_bits(tmp_path: Path) -> None:
    job = job_of(tmp_path, stored="int4", weights=InBfloat16(family("llama")))
    assert job.plan.kv_dtype == "bfloat16"
    built(job)


def test_head_sizes_of_real_models_have_fused_kernels(tmp_path: Path) -> None:
    decoder = declare(hidden_size=256, num_attention_heads=4, num_key_value_heads=1, head_dim=128, num_hidden_layers=1)
    made = portable_bundle(tmp_path / "b", decoder)
    built(prepare_job(made.path, "tiny", made.manifest, OPTIONS, made.spec.max_len))


# ---- checks ---------------------------------------------------------------------------------------


def edited(job: BuildJob, edit: Any) -> None:
    path = Path(job.directory, job.plan.graph)
    model = onnx.load(path, load_external_data=False)
    edit(model.graph)
    path.write_bytes(model.SerializeToString())


def test_counts_and_tensors_that_differ_from_the_spec_are_told_at_once(tmp_path: Path) -> None:
    job = job_of(tmp_path)
    wrong = replace(job, spec=replace(job.spec, n_layers=3), plan=replace(job.plan, kv_dtype="bfloat16"))
    with pytest.raises(ExportError) as caught:
        build_plan(wrong, lambda *_: None)
    message = str(caught.value)
    for told in ("2 attentions for 3 layers", "4 KV cache updates for 3 layers", "present_k_2 is not past_k_2 updated"):
        assert told in message
    assert "past_k_0 is ('float16', (-1, 2, 192, 16)) instead of ('bfloat16', (-1, 2, 192, 16))" in message


def test_a_cache_that_is_not_updated_in_place_is_found(tmp_path: Path) -> None:
    job = job_of(tmp_path)

    def swap(graph: Any) -> None:
        """Keys of layer 0 go to the buffer of its values."""
        keys, values = [n for n in graph.node if n.op_type == "TensorScatter"][:2]
        keys.output[0], values.output[0] = values.output[0], keys.output[0]

    edited(job, swap)
    with pytest.raises(ExportError, match="present_k_0 is not past_k_0 updated in place"):
        build_plan(job, lambda *_: None)


def test_an_input_that_the_parser_drops_is_found(tmp_path: Path) -> None:
    job = job_of(tmp_path)

    def drop(graph: Any) -> None:
        """As ONNX has it, the lengths are the seventh input; the parser reads four of them."""
        node = next(n for n in graph.node if n.op_type == "TRT_Attention")
        lengths = node.input[5]
        node.op_type = "Attention"
        del node.input[4:]
        node.input.extend(["", "", lengths])

    edited(job, drop)
    with pytest.raises(ExportError) as caught:
        build_plan(job, lambda *_: None)
    assert "layers.0/attn/scores_AttentionInput has no key-value lengths" in str(caught.value)
    assert "not the cache itself" in str(caught.value)  # which it would scale as a whole in every step


def test_a_warning_of_an_unused_input_is_a_problem() -> None:
    network = SimpleNamespace(num_layers=0, num_inputs=0, num_outputs=0)
    trt = SimpleNamespace(LayerType=SimpleNamespace(ATTENTION_INPUT=0, KV_CACHE_UPDATE=1))
    spec = replace(scripted_spec(10, max_len=64), n_layers=0, inputs=(), outputs=())
    job_plan: Any = None
    assert network_problems(trt, network, spec, job_plan, ["Make sure input x has Int64 binding."]) == []
    found = network_problems(trt, network, spec, job_plan, ["Unused Input: nonpad_kv_seqlen"])
    assert found == ["TensorRT says: Unused Input: nonpad_kv_seqlen"]


def test_a_cache_of_no_fixed_length_is_refused_in_one_line(tmp_path: Path) -> None:
    job = job_of(tmp_path)

    def loosen(graph: Any) -> None:
        for value in [*graph.input, *graph.output]:
            if value.name.startswith(("past_k", "past_v", "present_")):
                value.type.tensor_type.shape.dim[2].dim_param = "S"

    edited(job, loosen)
    with pytest.raises(ExportError, match="static sequence length") as caught:
        build_plan(job, lambda *_: None)
    assert "\n" not in str(caught.value)


def test_an_attention_without_a_fused_kernel_fails_the_build(tmp_path: Path) -> None:
    decoder = declare(hidden_size=128, num_attention_heads=2, num_key_value_heads=1, head_dim=512, num_hidden_layers=1)
    made = portable_bundle(tmp_path / "b", decoder)
    manifest = replace(made.manifest, decoder=None)  # or it would be refused before
    job = prepare_job(made.path, "tiny", manifest, OPTIONS, made.spec.max_len)
    with pytest.raises(ExportError, match="cannot build tiny"):
        build_plan(job, lambda *_: None)
    assert not Path(job.directory, job.plan.file).exists()


# ---- in a process of its own ----------------------------------------------------------------------


def test_a_crash_of_the_builder_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = job_of(tmp_path)
    (tmp_path / "tensorrt_rtx.py").write_text("import os, sys; print('out of luck', file=sys.stderr); os.abort()")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    with pytest.raises(ExportError, match=r"ended while it built the plan \(SIGABRT\): out of luck"):
        build_apart(job, lambda *_: None)


def test_an_error_of_the_builder_comes_back_as_it_was(tmp_path: Path) -> None:
    job = job_of(tmp_path)
    Path(job.directory, job.plan.graph).write_bytes(b"no graph")
    with pytest.raises(ExportError, match="TensorRT cannot read tiny"):
        build_apart(job, lambda *_: None)


def test_a_tensorrt_that_is_too_old_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(builder.LEAST_VERSIONS, "rtx", (99, 0))
    with pytest.raises(ExportError, match=r"is too old: .* needs 99.0 or newer"):
        require_builder(OPTIONS)


def test_an_absent_tensorrt_names_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(builder.MODULES, "rtx", "tensorrt_that_is_absent")
    with pytest.raises(MissingExtra, match=r"sssd\[rtx\]"):
        require_builder(OPTIONS)


# ---- as a user does it ----------------------------------------------------------------------------


def sssd(*args: str | Path) -> Result:
    return CliRunner().invoke(main, [str(a) for a in args])


def source(tmp_path: Path) -> Path:
    random = tensors_of(declare(**SIZES))
    tensors = {n: t / np.float32(np.sqrt(t.shape[-1])) if t.ndim == 2 else t for n, t in random.items()}
    return write_directory(tmp_path / "model", tensors, **SIZES)


SIZE_OPTIONS = ("--target", "tensorrt", "--flavour", "rtx", "--slots", "8", "--max-width", "16", "--chunk", "128")


def test_export_makes_a_plan_that_can_be_built_again_from_its_own_bundle(tmp_path: Path) -> None:
    out = tmp_path / "llama3"
    done = sssd("export", source(tmp_path), *SIZE_OPTIONS, "--weights", "int4", "--out", out)
    assert done.exit_code == 0, done.output
    plan = open_bundle(out / "llama3.plan").manifest.plan
    assert plan is not None
    assert (plan.flavour, plan.compute_capability, plan.max_len, plan.cache_len) == ("rtx", PORTABLE, 64, 192)
    assert "llama3.plan, rtx" in sssd("inspect", out).stdout
    assert sssd("check", out).exit_code == 0
    command = plan.rebuild_command(str(out)).split()[1:]
    again = sssd(*(word if word != "8" else "9" for word in command))
    assert again.exit_code == 0, again.output
    rebuilt = open_bundle(out).manifest
    assert rebuilt.plan == replace(plan, n_slots=9, profiles=rebuilt.plan.profiles if rebuilt.plan else ())
    assert sorted(p.name for p in tmp_path.iterdir()) == ["llama3", "model"]


def test_a_bundle_of_another_target_is_no_source_of_a_plan(tmp_path: Path) -> None:
    out = tmp_path / "cpu"
    assert sssd("export", source(tmp_path), "--out", out).exit_code == 0
    refused = sssd("export", out, *SIZE_OPTIONS, "--out", tmp_path / "plan")
    assert refused.exit_code == 1
    assert "export it again from its checkpoint with --target tensorrt" in refused.stderr
    wanted = sssd("export", out, *SIZE_OPTIONS, "--weights", "int8", "--out", tmp_path / "plan")
    assert "is a bundle with fp32 weights" in wanted.stderr
    assert not (tmp_path / "plan").exists()


def test_options_of_a_plan_need_its_target(tmp_path: Path) -> None:
    refused = sssd("export", source(tmp_path), "--slots", "4", "--out", tmp_path / "b")
    assert refused.exit_code == 1
    assert "plan options go with --target tensorrt, not with onnx" in refused.stderr


def test_full_tensorrt_says_what_it_lacks_before_anything_is_written(tmp_path: Path) -> None:
    refused = sssd("export", source(tmp_path), "--target", "tensorrt", "--out", tmp_path / "b")
    assert refused.exit_code == 1
    assert "sssd[tensorrt]" in refused.stderr or "--flavour rtx" in refused.stderr
    assert [p.name for p in tmp_path.iterdir()] == ["model"]


def test_an_interrupted_build_leaves_nothing_and_nobody(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "from sssd.cli import main; main()", "export", str(source(tmp_path))]
    command += [*SIZE_OPTIONS, "--out", str(tmp_path / "b")]
    export = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert export.stderr is not None
    worker = None
    while worker is None:
        assert export.poll() is None, export.stderr.read()
        children = Path(f"/proc/{export.pid}/task/{export.pid}/children").read_text().split()
        commands = {c: Path(f"/proc/{c}/cmdline").read_bytes() for c in children if Path(f"/proc/{c}").exists()}
        worker = next((c for c, line in commands.items() if b"sssd.export.tensorrt.worker" in line), None)
        time.sleep(0.01)
    export.send_signal(signal.SIGINT)
    export.wait(timeout=30)
    said = export.stderr.read()
    export.stderr.close()
    assert export.returncode != 0
    assert "Traceback" not in said
    assert not Path(f"/proc/{worker}").exists()
    assert [p.name for p in tmp_path.iterdir()] == ["model"]


# ---- ONNX Runtime on CUDA -------------------------------------------------------------------------


def test_a_bundle_for_cuda_computes_in_float16_and_says_so(tmp_path: Path) -> None:
    out = tmp_path / "cuda"
    done = sssd("export", source(tmp_path), "--target", "onnx-cuda", "--weights", "int4", "--out", out)
    assert done.exit_code == 0, done.output
    spec = json.loads(sssd("inspect", out, "--json").stdout)["spec"]
    assert (spec["kv_dtype"], spec["scores"]) == ("float16", "topk")
    graph = onnx.load(out / GRAPH, load_external_data=False).graph
    kinds = {v.name: v.type.tensor_type.elem_type for v in [*graph.input, *graph.output]}
    assert kinds["past_k_0"] == kinds["present_v_1"] == onnx.TensorProto.FLOAT16
    assert kinds["top_scores"] == kinds["lse"] == onnx.TensorProto.FLOAT
    assert {n.op_type for n in graph.node} >= {"Attention", "TensorScatter"}
    checked = sssd("check", out)
    assert checked.exit_code == 0, checked.output

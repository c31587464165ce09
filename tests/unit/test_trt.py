"""The TensorRT engine, end to end over a fake of TensorRT and of the GPU that runs the portable graph on the CPU."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from sssd.config import SamplingParams
from sssd.engines.base import Engine
from sssd.engines.choose import choose_device, on_a_gpu, open_engine
from sssd.engines.ort import OrtEngine
from sssd.engines.resident import ResidentEngine
from sssd.engines.trt import TrtExecutor, load_tensorrt
from sssd.errors import BundleError, EngineError, MissingExtra, OutOfMemory, SpecMismatch, SssdError
from sssd.loading import load
from sssd.plan import PlanInfo, PlanProfile, Span
from sssd.runtime.loop import Loop
from sssd.runtime.request import make_request
from sssd.runtime.scheduler import Scheduler
from sssd.spec import Bundle, open_bundle, write_manifest
from sssd.types import DraftJob, DraftOptions, DraftTree, Int32, VerifyBatch
from tests.helpers.batches import chain_batch, tree_batch
from tests.helpers.fake_trt import PLAN, VERSION, FakeTrt
from tests.helpers.host_device import HostDevice
from tests.helpers.random_decoders import LLAMA, VOCAB, bundle
from tests.helpers.trt_api import differences, rtx_only

SLOTS, CHUNK, WIDEST = 3, 12, 6
ONE, SCORED = Span(1, 1, 1), Span(1, 1, WIDEST)
INFO = PlanInfo(
    file="toy.plan",
    graph="toy.trt.onnx",
    flavour="tensorrt",
    version=VERSION,
    compute_capability="9.0",
    profiles=(
        PlanProfile("prompt", ONE, Span(1, CHUNK, CHUNK), SCORED),
        PlanProfile("tree", Span(1, 2, SLOTS), Span(1, 4, WIDEST), Span(1, 4, WIDEST)),
    ),
    n_slots=SLOTS,
    max_len=64,
    cache_len=64 + CHUNK,
    max_width=WIDEST,
    chunk=CHUNK,
    kv_dtype="float32",  # the fake computes in the portable graph's own type, so that results are the same bits
)
RNG = np.random.default_rng(0)


@pytest.fixture(scope="module")
def portable(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return bundle(tmp_path_factory.mktemp("trt") / "portable", LLAMA, scores="topk")


@pytest.fixture
def planned(portable: Bundle, tmp_path: Path) -> Bundle:
    """A bundle with a plan beside its graph."""
    path = tmp_path / "toy"
    shutil.copytree(portable.path, path)
    (path / INFO.file).write_bytes(PLAN + str(portable.path).encode())
    write_manifest(path, replace(portable.manifest, plan=INFO))
    return open_bundle(path / INFO.file)


class Rig:
    """An engine, and the two fakes below it."""

    def __init__(self, planned: Bundle, *, n_slots: int = SLOTS, capacity: int = 1 << 30, **faults: Any) -> None:
        plan = planned.manifest.plan
        assert plan is not None
        self.device = HostDevice(capacity=capacity)
        self.trt = FakeTrt(self.device, plan, **faults)
        self.executor = TrtExecutor(planned, plan, self.device, self.trt)
        self.engine = ResidentEngine(planned.spec, self.device, self.executor, n_slots=n_slots)


@pytest.fixture
def rig(planned: Bundle) -> Rig:
    return Rig(planned)


@pytest.fixture
def cpu(portable: Bundle) -> OrtEngine:
    return OrtEngine(portable, n_slots=SLOTS, threads=1)


def same_as(engine: Engine, cpu: Engine, batch: VerifyBatch) -> None:
    found, expected = engine.forward(batch), cpu.forward(batch)
    for name in ("next_ids", "top_ids", "top_scores", "lse"):
        np.testing.assert_array_equal(getattr(found, name), getattr(expected, name), name)


def trees(rows: int, width: int, past: list[int], *, scores: bool = True) -> VerifyBatch:
    parents = [[-1, *(int(RNG.integers(0, i)) for i in range(1, width))] for _ in range(rows)]
    batch = tree_batch(RNG.integers(0, VOCAB, (rows, width)).tolist(), parents, past)
    return replace(batch, needs_scores=scores)


def chain(n: int, past: int, slot: int) -> VerifyBatch:
    batch = chain_batch([RNG.integers(0, VOCAB, n).tolist()], [past], first_slot=slot)
    return replace(batch, logit_rows=np.array([[n - 1, n - 1]]))


# ---- what it computes -----------------------------------------------------------------------------


def test_prompts_trees_commits_and_copies_are_those_of_the_cpu_engine(rig: Rig, cpu: OrtEngine) -> None:
    lens = [11, 8, 9]
    for slot, n in enumerate(lens):
        same_as(rig.engine, cpu, chain(n, 0, slot))
    for step in range(10):
        batch = trees(3, int(RNG.integers(2, WIDEST + 1)), lens)
        same_as(rig.engine, cpu, batch)
        keeps = [np.flatnonzero(batch.tree_mask[b, -1]).astype(np.int32) for b in range(3)]
        for e in (rig.engine, cpu):
            e.commit(batch, keeps)
        lens = [n + len(k) for n, k in zip(lens, keeps, strict=True)]
        if step == 3:
            for e in (rig.engine, cpu):
                e.copy_prefix(0, 2, 7)
            lens[2] = 7
    assert rig.engine.n_captured > 0


def test_a_prompt_is_read_at_its_slots_own_address_with_the_prompt_profile(rig: Rig, cpu: OrtEngine) -> None:
    for slot in (2, 0, 1):
        same_as(rig.engine, cpu, chain(CHUNK, 0, slot))
    assert rig.trt.runs == [(0, (1, CHUNK))] * 3
    same_as(rig.engine, cpu, trees(3, 4, [CHUNK] * 3))
    assert rig.trt.runs[-1] == (1, (3, 4))


@pytest.mark.parametrize(("width", "padded"), [(2, 2), (3, 4), (4, 4), (5, WIDEST), (6, WIDEST)])
def test_widths_are_padded_to_buckets_within_the_profile(rig: Rig, cpu: OrtEngine, width: int, padded: int) -> None:
    batch = trees(2, width, [0, 0])
    found = rig.engine.forward(batch)
    assert rig.trt.runs == [(1, (2, padded))]
    np.testing.assert_array_equal(found.next_ids, cpu.forward(batch).next_ids)


# ---- captured graphs ------------------------------------------------------------------------------


def test_a_bucket_runs_eagerly_once_then_is_captured_then_replayed(rig: Rig, cpu: OrtEngine) -> None:
    captured = []
    for width in (3, 4, 3, 4, 2, 2):
        same_as(rig.engine, cpu, trees(2, width, [0, 0]))
        captured.append((rig.engine.n_captured, rig.device.launched_graphs))
    assert captured == [(0, 0), (1, 0), (1, 1), (1, 2), (1, 2), (2, 2)]


def test_a_bucket_is_captured_behind_others_that_came_between(rig: Rig, cpu: OrtEngine) -> None:
    for width in (4, 2, 5, 4, 2, 4, 2):
        same_as(rig.engine, cpu, trees(2, width, [0, 0]))
    assert (rig.engine.n_captured, rig.device.launched_graphs) == (2, 2)


def test_another_thread_may_run_the_engine(rig: Rig, cpu: OrtEngine) -> None:
    batch = trees(2, 4, [0, 0])
    rig.engine.forward(batch)
    with ThreadPoolExecutor(1) as pool:
        pool.submit(rig.engine.copy_prefix, 0, 1, 2).result()
        found = pool.submit(rig.engine.forward, batch).result()
    np.testing.assert_array_equal(found.next_ids, cpu.forward(batch).next_ids)


def test_batches_and_kinds_of_scores_have_graphs_of_their_own(rig: Rig) -> None:
    for rows, scores in ((1, True), (2, True), (2, False)):
        for _ in range(3):
            rig.engine.forward(trees(rows, 4, [0] * rows, scores=scores))
    assert rig.engine.n_captured == 3


def test_prompts_are_not_captured(rig: Rig) -> None:
    for _ in range(3):
        rig.engine.forward(chain(CHUNK, 0, 0))
        rig.engine.forward(chain(3, 0, 1))
    assert rig.engine.n_captured == 0


def test_where_capturing_fails_forwards_go_on_eagerly(rig: Rig, cpu: OrtEngine) -> None:
    rig.device.capture_fails = True
    for _ in range(4):
        same_as(rig.engine, cpu, trees(2, 4, [0, 0]))
    assert (rig.engine.n_captured, rig.device.launched_graphs) == (0, 0)


@pytest.mark.parametrize("capturable", [True, False])
def test_rtx_is_asked_whether_it_may_be_captured(planned: Bundle, capturable: bool) -> None:
    rig = Rig(planned, is_rtx=True, capturable=capturable)
    for _ in range(3):
        rig.engine.forward(trees(2, 4, [0, 0]))
    assert rig.engine.n_captured == (1 if capturable else 0)


def test_a_greedy_step_crosses_the_bus_in_two_small_copies(planned: Bundle) -> None:
    rig = Rig(planned)
    batch = trees(3, 4, [0] * 3, scores=False)
    for _ in range(3):
        rig.device.traffic.uploaded = rig.device.traffic.downloaded = 0
        rig.engine.forward(batch)
    inputs, outputs = 3 * 4 * (3 * 8 + 4 + 4) + 3 * 16, 3 * 4 * 12 + 3 * 4
    assert inputs <= rig.device.traffic.uploaded < inputs + 8 * 256
    assert outputs <= rig.device.traffic.downloaded < outputs + 3 * 256


# ---- lossless -------------------------------------------------------------------------------------


@dataclass
class Guesser:
    """Trees of random tokens around the true continuation, which never stands first."""

    truth: dict[int, list[int]] = field(default_factory=dict)
    given: dict[int, int] = field(default_factory=dict)

    def begin(self, request_id: int, prompt: Int32, options: DraftOptions) -> None:
        self.given[request_id] = 0

    def propose(self, jobs: Sequence[DraftJob]) -> list[DraftTree]:
        return [self._tree(job) for job in jobs]

    def _tree(self, job: DraftJob) -> DraftTree:
        tokens: list[int] = []
        parents: list[int] = []
        above = -1
        for token in self.truth.get(job.request_id, [])[self.given[job.request_id] :]:
            if len(tokens) + 2 > job.budget:
                break
            tokens += [(token + 1) % VOCAB, token]
            parents += [above, above]
            above = len(tokens) - 1
        n = len(tokens)
        scores = np.full(n, 0.5, np.float32)
        return DraftTree(np.array(tokens, np.int32), np.array(parents, np.int32), scores, np.zeros(n, np.uint8))

    def accept(self, request_id: int, tokens: Int32, tree: DraftTree) -> None:
        self.given[request_id] += len(tokens)

    def end(self, request_id: int) -> None:
        del self.given[request_id]

    def check(self) -> list[str]:
        return []

    def close(self) -> None:
        pass


def answers(engine: Engine, drafter: Guesser, params: SamplingParams) -> dict[int, list[int]]:
    """Five requests on the engine's slots."""
    loop = Loop(engine, drafter, Scheduler(n_slots=SLOTS, chunk=CHUNK), engine.spec.min_width, branch_noise=0.0)
    random = np.random.default_rng(5)
    for i in range(5):
        loop.add(
            make_request(
                i,
                random.integers(0, VOCAB, int(random.integers(3, 30))),
                replace(params, max_tokens=12 + i, seed=i),
                max_len=INFO.max_len,
                vocab_size=VOCAB,
                eos_ids=(),
                options=DraftOptions(),
                max_draft_tokens=4,
            )
        )
    said: dict[int, list[int]] = {i: [] for i in range(5)}
    while len(loop.scheduler):
        for out in loop.step():
            assert out.error is None
            said[out.request_id] += out.tokens
    return said


@pytest.mark.parametrize("params", [SamplingParams(), SamplingParams(temperature=0.8)], ids=["greedy", "sampled"])
def test_what_is_drafted_and_which_engine_runs_changes_no_token(
    rig: Rig, planned: Bundle, cpu: OrtEngine, params: SamplingParams
) -> None:
    plain = answers(cpu, Guesser(), params)
    assert answers(rig.engine, Guesser(), params) == plain
    drafter = Guesser(truth=plain)
    before = len(rig.trt.runs)
    found = answers(rig.engine, drafter, params)
    assert found == plain  # branches of the fake round otherwise in the last bit, which turns none of these choices
    assert len(rig.trt.runs) - before < before * 0.8, "accepted drafts save forwards"
    assert rig.engine.n_captured > 0


# ---- refusals -------------------------------------------------------------------------------------


def test_what_fits_no_profile_is_refused_with_the_profiles(rig: Rig) -> None:
    told = r"no profile of toy.plan \(prompt: 1 row of up to 12 columns, 6 scored; tree: up to 3 rows of up to 6 col"
    for batch in (trees(2, WIDEST + 1, [0, 0]), chain(CHUNK + 1, 0, 0), trees(1, WIDEST + 1, [0])):
        with pytest.raises(EngineError, match=told):
            rig.engine.forward(batch)
    same = trees(1, WIDEST, [0])
    rig.engine.forward(same)  # the engine goes on


def test_a_row_that_is_too_long_is_refused(rig: Rig) -> None:
    with pytest.raises(EngineError, match="a row would hold 77 tokens, and a slot holds 76"):
        rig.engine.forward(trees(1, 2, [75]))


def test_a_plan_of_another_version_or_gpu_is_refused_with_the_way_to_rebuild_it(planned: Bundle) -> None:
    plan, device = planned.manifest.plan, HostDevice()
    assert plan is not None
    other = FakeTrt(device, plan)
    other.__version__ = "10.16.1.11"
    with pytest.raises(SpecMismatch, match=r"rebuild it here with .*sssd export .*--target tensorrt"):
        TrtExecutor(planned, plan, device, other)
    device.compute_capability = "8.9"
    with pytest.raises(SpecMismatch, match=r"compute capability 8\.9"):
        TrtExecutor(planned, plan, device, FakeTrt(device, plan))


def test_a_plan_that_is_refused_says_tensorrts_reason(planned: Bundle) -> None:
    with pytest.raises(BundleError, match=r"does not take .*toy.plan: the GPU is not supported; rebuild it"):
        Rig(planned, refuses="the GPU is not supported")


def test_a_plan_that_does_not_write_its_cache_in_place_is_refused(planned: Bundle) -> None:
    with pytest.raises(BundleError, match="present_v_1 is not written in place"):
        Rig(planned, not_aliased="present_v_1")


def test_a_plan_with_other_tensors_than_its_manifest_is_refused(planned: Bundle) -> None:
    spec = planned.spec
    inputs = (replace(spec.inputs[0], dtype="bool"), *spec.inputs[1:], replace(spec.inputs[0], name="more"))
    told = replace(planned, manifest=replace(planned.manifest, spec=replace(spec, inputs=inputs)))
    with pytest.raises(BundleError, match=r"more is missing; input_ids is .*, not bool"):
        Rig(told)


def test_too_little_device_memory_says_how_many_slots_fit(planned: Bundle) -> None:
    slot = INFO.cache_len * planned.spec.kv_bytes_per_token()
    with pytest.raises(OutOfMemory, match=r"for 30 slots of 76 tokens; .* MiB are free, 9 slots fit"):
        Rig(planned, n_slots=30, capacity=9 * slot + 36_000)
    with pytest.raises(OutOfMemory, match="is out of memory"):
        Rig(planned, capacity=1000)


def test_slots_that_do_not_begin_at_aligned_addresses_are_refused(planned: Bundle) -> None:
    plan = replace(INFO, cache_len=INFO.cache_len + 1)
    told = replace(planned, manifest=replace(planned.manifest, plan=plan))
    with pytest.raises(EngineError, match="no multiple of 256: export again with a --max-len"):
        Rig(told)
    Rig(told, n_slots=1)  # one slot has one address


def test_a_forward_that_cannot_be_enqueued_ends_the_engine(rig: Rig) -> None:
    rig.trt.run_fails = True
    batch = trees(1, 2, [0])
    with pytest.raises(EngineError, match=r"could not enqueue the forward: .*illegal address.*; restart sssd"):
        rig.engine.forward(batch)
    rig.trt.run_fails = False
    with pytest.raises(EngineError, match="has failed before"):
        rig.engine.forward(batch)


def test_a_device_that_is_lost_ends_the_requests_of_the_step_and_says_so(rig: Rig) -> None:
    loop = Loop(rig.engine, Guesser(), Scheduler(n_slots=SLOTS, chunk=CHUNK), 2, branch_noise=None)
    limits: dict[str, Any] = {"max_len": 64, "vocab_size": VOCAB, "eos_ids": (), "max_draft_tokens": 0}
    loop.add(make_request(0, [1, 2, 3], SamplingParams(max_tokens=8), options=DraftOptions(), **limits))
    rig.device.failure = "fake GPU failed with cudaErrorIllegalAddress"
    outputs = loop.step()
    assert [(o.finish, o.request_id) for o in outputs] == [("error", 0)]
    assert "restart sssd" in str(outputs[0].error)


def test_a_plan_lends_the_engine_its_own_limits(planned: Bundle) -> None:
    plan = replace(INFO, max_len=40, kv_dtype="float16")
    spec = on_a_gpu(planned.spec, plan)
    assert (spec.max_len, spec.kv_dtype, spec.branch_noise) == (40, "float16", None)
    assert on_a_gpu(planned.spec, None) == replace(planned.spec, branch_noise=None)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"n_slots": 4}, "n_slots is 4: toy.plan was built for at most 3"),
        ({"chunk": 13}, "chunk is 13: .* at most 12"),
        ({"max_draft_tokens": 3}, "max_draft_tokens is 3: .* at most 2"),
        ({"fixed_width": 7}, "fixed_width is 7: .* at most 6"),
    ],
)
def test_steps_that_the_plan_cannot_run_are_refused_at_the_start(
    planned: Bundle, options: dict[str, int], told: str
) -> None:
    fits = {"n_slots": 3, "chunk": 12, "max_draft_tokens": 2}
    with pytest.raises(SssdError, match=told):
        load(planned.path, **fits | options)


def test_a_device_that_the_bundle_is_not_made_for_is_told(portable: Bundle, planned: Bundle) -> None:
    assert (choose_device(portable, None), choose_device(planned, None)) == ("cpu", "tensorrt")
    assert choose_device(planned, "cpu") == "cpu"
    half = replace(portable, manifest=replace(portable.manifest, spec=replace(portable.spec, kv_dtype="float16")))
    assert choose_device(half, None) == "cuda"
    with pytest.raises(EngineError, match="has no TensorRT plan: export its model with --target tensorrt"):
        open_engine(portable, n_slots=1, device="tensorrt")


# ---- the modules ----------------------------------------------------------------------------------


def test_a_flavour_that_is_not_installed_names_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sssd.engines.trt.find_spec", lambda name: None)
    with pytest.raises(MissingExtra, match=r"tensorrt_rtx: install it with .*sssd\[rtx\]"):
        load_tensorrt("rtx")
    with pytest.raises(MissingExtra, match=r"tensorrt: install it with .*sssd\[tensorrt\]"):
        load_tensorrt("tensorrt")


def test_a_flavour_that_does_not_load_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(name: str) -> Any:
        raise ImportError("libnvinfer.so.11: cannot open shared object file")

    monkeypatch.setattr("sssd.engines.trt.find_spec", lambda name: SimpleNamespace())
    monkeypatch.setattr("sssd.engines.trt.import_module", broken)
    with pytest.raises(EngineError, match=r"tensorrt is installed but does not load: libnvinfer.so.11"):
        load_tensorrt("tensorrt")


def test_the_fake_is_called_as_tensorrt_rtx_is() -> None:
    trt = pytest.importorskip("tensorrt_rtx")
    assert differences(trt) + rtx_only(trt) == []


def test_another_name_or_parameter_in_the_bindings_would_be_noticed() -> None:
    class Context:
        def execute_async_v3(self) -> None:
            """execute_async_v3(self: x.IExecutionContext, stream: int) -> bool"""

    found = differences(SimpleNamespace(IExecutionContext=Context, Runtime=object, __version__="1"))
    assert "IExecutionContext.execute_async_v3: called with ['stream_handle'], but takes ['stream']" in found
    assert "IExecutionContext.infer_shapes: missing" in found
    assert "ICudaEngine is missing" in found
    assert "DataType.HALF is missing" in found

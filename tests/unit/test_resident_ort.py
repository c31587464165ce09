"""The GPU-resident engine, with ONNX Runtime as its executor: on host memory behind the device seam."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pytest

from sssd.engines.ort import OrtEngine
from sssd.engines.ort_cuda import PROVIDER, OrtExecutor, require_assigned
from sssd.engines.resident import ResidentEngine
from sssd.errors import EngineError, OutOfMemory
from sssd.spec import Bundle
from sssd.types import EngineOutput, VerifyBatch
from tests.helpers.batches import chain_batch, tree_batch
from tests.helpers.host_device import HostDevice
from tests.helpers.random_decoders import LLAMA, VOCAB, bundle

FALLBACK = "CPUExecutionProvider"
RNG = np.random.default_rng(0)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return bundle(tmp_path_factory.mktemp("resident") / "b", LLAMA)


def resident(made: Bundle, *, n_slots: int = 4, graphs: bool = False, capacity: int = 1 << 30) -> ResidentEngine:
    device = HostDevice(lazy=False, capacity=capacity)
    executor = OrtExecutor(made, device, cuda_graphs=graphs, provider=FALLBACK)
    return ResidentEngine(made.spec, device, executor, n_slots=n_slots)


@pytest.fixture(params=[False, True], ids=["eager", "captured"])
def engine(made: Bundle, request: pytest.FixtureRequest) -> Iterator[ResidentEngine]:
    opened = resident(made, graphs=request.param)
    yield opened
    opened.close()


@pytest.fixture
def cpu(made: Bundle) -> OrtEngine:
    return OrtEngine(made, n_slots=4, threads=1)


def same(found: EngineOutput, expected: EngineOutput) -> None:
    np.testing.assert_array_equal(found.next_ids, expected.next_ids)
    if expected.logits is None:
        assert found.logits is None
    else:
        assert found.logits is not None
        np.testing.assert_array_equal(found.logits, expected.logits)


def random_trees(rows: int, width: int, past: list[int], *, scores: bool) -> VerifyBatch:
    parents = [[-1, *(int(RNG.integers(0, i)) for i in range(1, width))] for _ in range(rows)]
    batch = tree_batch(RNG.integers(0, VOCAB, (rows, width)).tolist(), parents, past)
    return replace(batch, needs_scores=scores)


def test_it_says_and_caches_what_the_cpu_engine_does(engine: ResidentEngine, cpu: OrtEngine) -> None:
    lens = [0, 0, 0]
    for step in range(8):
        batch = random_trees(3, int(RNG.integers(2, 9)), lens, scores=True)
        same(engine.forward(batch), cpu.forward(batch))
        keeps = [np.flatnonzero(batch.tree_mask[b, -1]).astype(np.int32) for b in range(3)]
        for e in (engine, cpu):
            e.commit(batch, keeps)
        lens = [n + len(k) for n, k in zip(lens, keeps, strict=True)]
        if step == 4:
            for e in (engine, cpu):
                e.copy_prefix(1, 0, 5)
            lens[0] = 5


def test_a_prompt_is_read_at_its_own_slot(engine: ResidentEngine, cpu: OrtEngine) -> None:
    for e in (engine, cpu):
        e.forward(chain_batch([[1, 2, 3, 4]] * 4, [0] * 4))
        e.forward(chain_batch([[5, 6, 7]], [4], first_slot=2))
    batch = chain_batch(RNG.integers(0, VOCAB, (4, 3)).tolist(), [4, 4, 7, 4])
    same(engine.forward(batch), cpu.forward(batch))


def test_the_cache_grows_and_keeps_what_it_holds(engine: ResidentEngine, cpu: OrtEngine) -> None:
    before = engine.cache_len
    first = chain_batch(RNG.integers(0, VOCAB, (2, before - 1)).tolist(), [0, 0])
    second = chain_batch([[7, 8, 9]] * 2, [40, before - 1])
    for batch in (first, second):
        same(engine.forward(batch), cpu.forward(batch))
    assert engine.cache_len > before


def test_greedy_rows_are_committed_by_the_device(made: Bundle, cpu: OrtEngine) -> None:
    """Trees that hold the argmax path behind wrong siblings: it has to be moved, and crosses the bus as ids only."""
    engine = resident(made)
    device = engine._device
    assert isinstance(device, HostDevice)
    start = chain_batch([[1, 2], [3, 4]], [0, 0])
    cpu.forward(start)
    engine.forward(start)
    lens, last = [2, 2], [5, 6]
    for _ in range(4):
        batch = replace(with_the_argmax_path(cpu, last, lens), needs_scores=False)
        out = engine.forward(batch)
        expected = cpu.forward(batch)
        same(out, expected)
        keeps = [np.array([0, 2, 4], np.int32)] * 2
        uploaded = device.traffic.uploaded
        engine.commit(batch, keeps)
        assert device.traffic.uploaded == uploaded, "the device has done it already"
        cpu.commit(batch, keeps)
        lens = [n + 3 for n in lens]
        last = [int(expected.next_ids[b, 4]) for b in range(2)]


def with_the_argmax_path(cpu: OrtEngine, last: list[int], lens: list[int]) -> VerifyBatch:
    """Columns: root, wrong, right, wrong child, right child."""
    first = cpu.forward(chain_batch([[t] for t in last], lens)).next_ids[:, 0]
    second = cpu.forward(chain_batch([[t, int(f)] for t, f in zip(last, first, strict=True)], lens)).next_ids[:, 1]
    rows = [
        [t, (f + 1) % VOCAB, f, (s + 1) % VOCAB, s]
        for t, f, s in zip(last, first.tolist(), second.tolist(), strict=True)
    ]
    return tree_batch(rows, [[-1, 0, 0, 2, 2]] * len(rows), lens)


def test_a_keep_that_is_not_the_argmax_walk_is_refused(engine: ResidentEngine) -> None:
    batch = replace(chain_batch([[1, 2, 3]], [0]), needs_scores=False)
    engine.forward(batch)
    with pytest.raises(EngineError, match=r"row 0 keeps columns \[0, 2\], but its argmax walk is"):
        engine.commit(batch, [np.array([0, 2], np.int32)])


def test_a_greedy_step_moves_few_bytes(made: Bundle) -> None:
    engine = resident(made)
    device = engine._device
    assert isinstance(device, HostDevice)
    batch = random_trees(4, 16, [0] * 4, scores=False)
    engine.forward(batch)
    device.traffic.uploaded = device.traffic.downloaded = 0
    engine.forward(batch)
    inputs = 4 * 16 * (3 * 8 + 16 + 4) + 4 * (8 + 4 + 4)
    outputs = 4 * 16 * (8 + 4) + 4 * 4
    assert inputs <= device.traffic.uploaded < inputs + 8 * 256
    assert outputs <= device.traffic.downloaded < outputs + 3 * 256


def test_too_little_memory_says_how_many_slots_fit(made: Bundle) -> None:
    slot = 256 * made.spec.kv_bytes_per_token()
    with pytest.raises(OutOfMemory, match=r"for 8 slots of 256 tokens; .* 3 slots fit: use fewer slots"):
        resident(made, n_slots=8, capacity=3 * slot + 4096)


def test_a_cache_that_cannot_grow_leaves_an_engine_that_goes_on(made: Bundle, cpu: OrtEngine) -> None:
    slot = 256 * made.spec.kv_bytes_per_token()
    engine = resident(made, n_slots=2, capacity=3 * slot)
    with pytest.raises(OutOfMemory, match="0 slots fit"):
        engine.forward(chain_batch([[1, 2]], [256]))
    batch = chain_batch([[1, 2]], [0])
    same(engine.forward(batch), cpu.forward(batch))


def test_a_lost_device_ends_this_forward_and_all_further_ones(made: Bundle) -> None:
    engine = resident(made)
    device = engine._device
    assert isinstance(device, HostDevice)
    device.failure = "fake GPU failed with cudaErrorIllegalAddress"
    batch = chain_batch([[1, 2]], [0])
    with pytest.raises(EngineError, match=r"failed on 1 rows of 2 columns: .*IllegalAddress; restart sssd"):
        engine.forward(batch)
    device.failure = None
    for refused in (lambda: engine.forward(batch), lambda: engine.copy_prefix(0, 1, 1)):
        with pytest.raises(EngineError, match="has failed before"):
            refused()
    engine.close()
    engine.close()


def test_slots_are_counted_from_one(made: Bundle) -> None:
    with pytest.raises(EngineError, match="n_slots is 0: allowed is 1 or more"):
        resident(made, n_slots=0)


class Node(NamedTuple):
    op_type: str


class Part(NamedTuple):
    """What ONNX Runtime says of the nodes that one provider runs."""

    ep_name: str
    nodes: list[Node]

    def get_nodes(self) -> list[Node]:
        return self.nodes


class Session(NamedTuple):
    parts: list[Part]

    def get_provider_graph_assignment_info(self) -> list[Part]:
        return self.parts


def test_a_graph_that_would_fall_back_to_the_cpu_is_refused_by_operator() -> None:
    gpu = Part(PROVIDER, [Node("MatMul")] * 9)
    shapes = Part(FALLBACK, [Node("Shape"), Node("Range")])
    require_assigned(Session([gpu, shapes]), PROVIDER)
    fallen = Part(FALLBACK, [Node("Shape"), Node("TensorScatter"), Node("TensorScatter"), Node("Attention")])
    with pytest.raises(EngineError, match=r"fall back to the CPU: TensorScatter \(2\), Attention \(1\); use"):
        require_assigned(Session([gpu, fallen]), PROVIDER)


def test_every_node_of_a_session_is_assigned_to_its_provider(made: Bundle) -> None:
    session = OrtExecutor(made, HostDevice(lazy=False), provider=FALLBACK)._session
    require_assigned(session, FALLBACK)
    with pytest.raises(EngineError, match=r"MatMul \(\d+\)"):
        require_assigned(session, PROVIDER)


def test_an_onnx_runtime_without_the_provider_is_told(made: Bundle) -> None:
    with pytest.raises(EngineError, match=r"has no CUDAExecutionProvider: install it with .*sssd\[gpu\]"):
        OrtExecutor(made, HostDevice(lazy=False))

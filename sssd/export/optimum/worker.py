"""The torch side: loads a model, traces it and its small copy, and writes down what they say.

    python -m sssd.export.optimum.worker < job.json

Runs in the interpreter that has torch and transformers, once an export, because exporters change global tables. Reads a
TraceJob from standard input, writes messages to standard output and files into the job's directory; knows no bundle.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import IO, Any

import msgspec
import numpy as np

from sssd.export.optimum.job import (
    ANSWERS_FILE,
    FACTS_FILE,
    MODEL_PART,
    PROBE_PART,
    Message,
    Refused,
    Stage,
    Traced,
    TraceJob,
    own_version,
)
from sssd.export.parity import planned_sequences
from sssd.types import Float32

_TOOLS = ("torch", "transformers", "onnxscript", "optimum", "optimum-onnx")
_DYNAMIC_ROPES = ("dynamic", "longrope")


class _Unable(Exception):
    """The model cannot be exported; the message says why."""


def run(job: TraceJob, say: Callable[[Message], None]) -> None:
    """Fill the job's directory, part by part. Raises _Unable."""
    if job.version != own_version():
        raise _Unable(f"that environment has sssd {own_version()}, this one {job.version}: install the same in both")
    from sssd.export.optimum.answers import at_once, step_by_step
    from sssd.export.optimum.probe import random_copy

    say(Stage("load", 0, 1))
    config = _config(job)
    _refuse_dynamic_ropes(config)
    max_len, out = _max_len(job, config), Path(job.out)
    probe = random_copy(config)
    _part(probe, out / PROBE_PART, step_by_step, max_len, lambda done: say(Stage("trace a small copy", done, 2)))
    del probe
    model = _model(job, config)
    _part(model, out / MODEL_PART, at_once, max_len, lambda done: say(Stage("trace", done, 2)))


def _config(job: TraceJob) -> Any:
    from transformers import AutoConfig

    from sssd.export.optimum.probe import with_layers

    try:
        config = AutoConfig.from_pretrained(job.source)
    except (ValueError, OSError, KeyError) as error:
        raise _Unable(f"transformers cannot read its config: {_line(error)}") from error
    if job.n_layers is None:
        return config
    n_layers = config.get_text_config().num_hidden_layers
    if not 1 <= job.n_layers <= n_layers:
        raise _Unable(f"draft_layers {job.n_layers} is not possible: it has 1 to {n_layers} layers to keep")
    return with_layers(config, list(range(job.n_layers)))


def _n_positions(config: Any) -> int | None:
    """Positions that the model was made for; None where it knows no limit, as with ALiBi."""
    found: int | None = getattr(config.get_text_config(), "max_position_embeddings", None)
    return found


def _max_len(job: TraceJob, config: Any) -> int:
    n_positions = _n_positions(config)
    if job.max_len is None and n_positions is None:
        raise _Unable("its config gives no number of positions: say how long texts may be with --max-len")
    if job.max_len is not None and n_positions is not None and job.max_len > n_positions:
        raise _Unable(f"max_len {job.max_len} is not possible: it was made for 1 to {n_positions} positions")
    chosen = n_positions if job.max_len is None else job.max_len
    assert chosen is not None
    return chosen


def _refuse_dynamic_ropes(config: Any) -> None:
    text = config.get_text_config()
    rope = getattr(text, "rope_parameters", None) or getattr(text, "rope_scaling", None) or {}
    kinds = [rope, *(value for value in rope.values() if isinstance(value, dict))]
    found = {str(kind.get("rope_type", kind.get("type"))) for kind in kinds} & set(_DYNAMIC_ROPES)
    if found:
        raise _Unable(
            f"its rope type {', '.join(sorted(found))} changes with the length of the text, which no trace keeps"
        )


def _model(job: TraceJob, config: Any) -> Any:
    import torch
    from transformers import AutoModelForCausalLM

    try:
        model: Any = AutoModelForCausalLM.from_pretrained(job.source, config=config, dtype=torch.float32)
    except (ValueError, OSError, RuntimeError) as error:
        raise _Unable(f"transformers cannot load it: {_line(error)}") from error
    return model.eval()


def _part(
    model: Any,
    out: Path,
    answer: Callable[[Any, Sequence[tuple[int, ...]]], Float32],
    max_len: int,
    progress: Callable[[int], None],
) -> None:
    """Trace a model and let it answer; nothing is written before both exporters have been asked."""
    from sssd.export.optimum.tracing import Untraceable, cache_shapes, trace_inputs

    out.mkdir()
    progress(0)
    try:
        shapes = cache_shapes(model)
    except Untraceable as error:
        raise _Unable(str(error)) from error
    heads = {(s.n_key_heads, s.key_dim) for s in shapes} | {(s.n_value_heads, s.value_dim) for s in shapes}
    if len(heads) != 1:
        shown = ", ".join(f"{n} heads of {dim}" for n, dim in sorted(heads))
        raise _Unable(f"its keys and values are not of one shape ({shown}), which a bundle's cache needs")
    head = model.get_output_embeddings().weight
    sequences = planned_sequences(len(head))
    answers = answer(model, sequences)
    np.save(out / ANSWERS_FILE, answers)
    progress(1)
    exporter, refused = _trace(model, trace_inputs(shapes, len(head)), _n_positions(model.config), out)
    n_kv_heads, head_dim = heads.pop()
    facts = Traced(
        model_type=model.config.model_type,
        exporter=exporter,
        refused=refused,
        vocab_size=answers.shape[-1],
        n_layers=len(shapes),
        n_kv_heads=n_kv_heads,
        head_dim=head_dim,
        max_len=max_len,
        n_matrix_numbers=sum(p.numel() for p in model.parameters() if p.dim() > 1),
        tools=_versions(),
    )
    (out / FACTS_FILE).write_bytes(msgspec.json.encode(facts))
    progress(2)


def _trace(model: Any, inputs: Any, n_positions: int | None, out: Path) -> tuple[str, str | None]:
    """The exporter that took the model, and why the one before it did not."""
    from sssd.export.optimum.tracing import TRACERS, Untraceable

    refused: dict[str, str] = {}
    for name, trace in TRACERS.items():
        try:
            trace(model, inputs, n_positions, out)
        except Untraceable as error:
            refused[name] = str(error)
        else:
            return name, next(iter(refused.values()), None)
    raise _Unable("; ".join(f"{name} refuses: {reason}" for name, reason in refused.items()))


def _versions() -> dict[str, str]:
    found = {}
    for name in _TOOLS:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def _line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def main() -> int:
    """The process; standard output carries messages only."""
    messages: IO[str] = sys.stdout
    sys.stdout = sys.stderr  # exporters print

    def say(message: Message) -> None:
        print(msgspec.json.encode(message).decode(), file=messages, flush=True)

    try:
        run(msgspec.json.decode(sys.stdin.buffer.read(), type=TraceJob), say)
    except _Unable as error:
        say(Refused(str(error)))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

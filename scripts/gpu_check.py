"""Build, check and measure on an NVIDIA GPU what this machine allows, one JSON line a step, in under eight minutes.

    python scripts/gpu_check.py                                   # a random model of 0.2 billion weights
    python scripts/gpu_check.py --source ./Llama-3.2-1B --out gpu_check.jsonl

Steps: what the machine has; the kernels against numpy; then for ONNX Runtime on CUDA, TensorRT and TensorRT-RTX, as
far as they work here: export, `check --engine`, the same words with and without drafts, milliseconds of a forward. Each
runs in a process of its own with a time limit, so that a step that fails, hangs or crashes is a line like any other.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Any

ROOT = Path(__file__).parents[1]
SSSD = (sys.executable, "-c", "from sssd.cli import main; main()")
MAX_LEN, CONTEXT, SLOTS, WIDTH = "2048", "512", "4", 16
RANDOM = {
    "vocab_size": 32000,
    "hidden_size": 1024,
    "intermediate_size": 2816,
    "num_hidden_layers": 12,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "max_position_embeddings": 4096,
}


@dataclass(frozen=True)
class Step:
    """One command and its limit."""

    name: str
    command: tuple[str, ...]
    seconds: float
    needs: str | None = None  # what doctor must have found to work


def run_step(step: Step, left: float) -> dict[str, Any]:
    """Run a step's command within its limit and the time that is left; never raises for what happens in it."""
    limit = min(step.seconds, left)
    if limit < 1:
        return {"step": step.name, "ok": False, "seconds": 0.0, "error": "no time was left"}
    began = monotonic()
    try:
        done = subprocess.run(step.command, capture_output=True, timeout=limit, check=False, cwd=ROOT)
    except subprocess.TimeoutExpired:
        return _line(step, began, ok=False, error=f"took longer than {limit:.0f} s")
    except OSError as e:
        return _line(step, began, ok=False, error=str(e))
    out = done.stdout.decode(errors="replace").strip()
    if done.returncode == 0:
        return _line(step, began, ok=True, result=_parsed(out))
    why = f"crashed with signal {-done.returncode}" if done.returncode < 0 else f"status {done.returncode}"
    last = done.stderr.decode(errors="replace").strip().splitlines()[-3:]
    return _line(step, began, ok=False, error=" | ".join([why, *last])[:2000])


def _line(step: Step, began: float, **more: Any) -> dict[str, Any]:
    return {"step": step.name, "seconds": round(monotonic() - began, 1), **more}


def _parsed(out: str) -> Any:
    try:
        return json.loads(out)
    except ValueError:
        return out.splitlines()[-20:]


def works(doctor: Any, part: str) -> bool:
    """Whether doctor found that a part works."""
    parts = doctor.get("parts", []) if isinstance(doctor, dict) else []
    return any(found["name"] == part and found["works"] for found in parts)


def steps(source: str, work: Path) -> list[Step]:
    """All of them, in order."""
    found = [own("kernels", 60, needs="NVIDIA driver")]
    for name, needs, target in (
        ("cuda", "ONNX Runtime, CUDA", ("--target", "onnx-cuda")),
        ("rtx", "TensorRT-RTX", ("--target", "tensorrt", "--flavour", "rtx", "--slots", SLOTS)),
        ("tensorrt", "TensorRT", ("--target", "tensorrt", "--flavour", "tensorrt", "--slots", SLOTS)),
    ):
        bundle = str(work / name)
        options = ("--max-len", MAX_LEN, "--out", bundle)
        found.append(Step(f"{name}: export", (*SSSD, "export", source, *target, *options), 150, needs))
        for device in ("cuda", "cuda-graphs") if name == "cuda" else ("tensorrt",):
            on = ("--device", device)
            check = (*SSSD, "check", bundle, "--engine", *on, "--slots", SLOTS, "--context", CONTEXT)
            cost = (*SSSD, "calibrate", bundle, *on, "--slots", SLOTS, "--seconds", "15", "--json")
            found.append(Step(f"{name}: check on {device}", check, 90, needs))
            found.append(own("lossless", 60, bundle, device, name=f"{name}: lossless on {device}", needs=needs))
            found.append(Step(f"{name}: milliseconds on {device}", cost, 60, needs))
    return found


def own(step: str, seconds: float, *options: str, name: str | None = None, needs: str | None = None) -> Step:
    """A step that is a function of this file."""
    return Step(name or step, (sys.executable, __file__, "--step", step, *options), seconds, needs)


# ---- steps of this file ---------------------------------------------------------------------------


def make_source(path: str) -> None:
    """A random checkpoint of the llama family."""
    sys.path.insert(0, str(ROOT))
    from tests.helpers.tiny_directory import declare, tensors_of, write_directory

    decoder = declare(4096, **RANDOM)
    tensors = {name: values * (0.02 if values.ndim == 2 else 1) for name, values in tensors_of(decoder).items()}
    write_directory(Path(path), tensors, **RANDOM)
    print(json.dumps({"weights": sum(int(t.size) for t in tensors.values())}))


def check_kernels() -> None:
    """The kernels on the GPU against their emulation."""
    sys.path.insert(0, str(ROOT))
    import numpy as np

    from sssd.engines.cuda import CudaDevice
    from sssd.engines.device import Grid
    from tests.helpers import emulated

    device, rng = CudaDevice(), np.random.default_rng(0)
    parts, slots, heads, length, words, rows, width = 4, 5, 3, 40, 32, 3, 9
    kv = rng.integers(0, 2**32, (parts, slots, heads, length, words), np.uint32)
    past = rng.integers(0, 20, rows)
    keep = np.sort(np.stack([rng.permutation(width) for _ in range(rows)]), axis=1).astype(np.int32)
    n_keep = np.array([0, 4, 9], np.int32)
    keep[1, :4] = [0, 2, 5, 8]
    arrays = [kv.reshape(-1), past, keep.reshape(-1), n_keep]
    pinned, addresses = [], []
    for array in arrays:
        pinned.append(device.pin(array.nbytes))
        pinned[-1][:] = array.view(np.uint8).reshape(-1)
        addresses.append(device.allocate(array.nbytes))
        device.upload(addresses[-1], pinned[-1])
    numbers = (width, 1, slots, length, words)
    device.launch("kv_commit", Grid(heads, rows, parts), 64, (*addresses, *numbers))
    emulated.run(emulated.kv_commit, Grid(heads, rows, parts), 32, *arrays, *numbers)
    copied = (4, 0, 17, slots, length, words)
    device.launch("kv_copy", Grid(heads, 8, parts), 256, (addresses[0], *copied))
    emulated.run(emulated.kv_copy, Grid(heads, 8, parts), 32, arrays[0], *copied)
    device.download(pinned[0], addresses[0])
    device.synchronize()
    same = bool((pinned[0].view(np.uint32) == arrays[0]).all())
    print(json.dumps({"gpu": device.name, "capability": device.compute_capability, "same": same}))
    device.close()
    sys.exit(not same)


def check_lossless(bundle: str, device: str) -> None:
    """The same tokens with and without drafts, at one width and at free widths."""
    import numpy as np

    import sssd

    params = sssd.SamplingParams(max_tokens=96, ignore_eos=True)
    prompts = [np.tile(np.arange(10 + i, 40 + i, dtype=np.int32), 3) for i in range(4)]
    said: dict[str, Any] = {}
    for name, drafter, width in (("plain", "none", WIDTH), ("drafts", "maxgram", WIDTH), ("free", "maxgram", None)):
        with sssd.load(bundle, drafter=drafter, device=device, fixed_width=width, n_slots=4, n_warm=0) as llm:
            llm.generate(prompts, params)
            began = monotonic()
            done = llm.generate(prompts, params)
            seconds = monotonic() - began
        said[name] = ([d.token_ids for d in done], round(4 * 96 / seconds, 1))
    (plain, _), (drafts, _), (free, _) = said.values()
    report = {name: rate for name, (_, rate) in said.items()}
    differ = {"fixed width": sum(a != b for a, b in zip(plain, drafts, strict=True))}
    differ["free widths"] = sum(a != b for a, b in zip(plain, free, strict=True))
    print(json.dumps({"tokens_per_second": report, "answers_that_differ": differ, "of": len(prompts)}))
    sys.exit(plain != drafts)


OWN = {"source": make_source, "kernels": check_kernels, "lossless": check_lossless}


def main(arguments: Sequence[str] | None = None) -> None:
    """Run everything, or one step of this file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--source", help="checkpoint to export; a random one otherwise")
    parser.add_argument("--out", type=Path, help="file for the lines, beside stdout")
    parser.add_argument("--seconds", type=float, default=460, help="time for all steps")
    parser.add_argument("--step", nargs="+", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.step:
        OWN[options.step[0]](*options.step[1:])
        return
    end = monotonic() + options.seconds
    lines: list[dict[str, Any]] = []

    def say(line: dict[str, Any]) -> dict[str, Any]:
        lines.append(line)
        print(json.dumps(line), flush=True)
        if options.out is not None:
            options.out.write_text("".join(json.dumps(each) + "\n" for each in lines))
        return line

    with tempfile.TemporaryDirectory() as scratch:
        work = Path(scratch)
        doctor = say(run_step(Step("doctor", (*SSSD, "doctor", "--json"), 120), end - monotonic())).get("result")
        source = options.source or str(work / "random")
        if works(doctor, "NVIDIA driver") and options.source is None:
            say(run_step(own("source", 60, source), end - monotonic()))
        for step in steps(source, work):
            if step.needs is not None and not (works(doctor, "NVIDIA driver") and works(doctor, step.needs)):
                say({"step": step.name, "skipped": f"{step.needs} does not work here: see the first line"})
            else:
                say(run_step(step, end - monotonic()))


if __name__ == "__main__":
    main()

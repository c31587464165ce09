"""A plan for a bundle that is there already: on another machine, or for other sizes. Knows no checkpoint."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from pathlib import Path

from sssd.errors import BundleError, ExportError
from sssd.export.tensorrt.plan_bundle import Progress, add_plan, require_builder
from sssd.plan import PlanOptions
from sssd.spec import MANIFEST, Bundle, WeightType, open_bundle, staged_directory, verify_files, write_manifest


def is_bundle(source: str | Path) -> bool:
    """Whether the source is an exported bundle and no checkpoint."""
    return (Path(source) / MANIFEST).is_file()


def rebuild_plan(
    source: Path,
    out: Path,
    *,
    plan: PlanOptions,
    weights: WeightType | None,
    max_len: int | None,
    force: bool,
    progress: Progress,
) -> Bundle:
    """Build a plan from a bundle's own graph and weights into the bundle `out`, which may be the same one.

    Reads every file of the bundle, to be sure of it. Raises ExportError, BundleError, MissingExtra; `out` is then as it
    was.
    """
    opened = open_bundle(source)
    if weights not in (None, opened.spec.weights):
        raise ExportError(
            f"--weights {weights} is not possible: {source} is a bundle with {opened.spec.weights} weights; "
            "leave --weights out, or export from the checkpoint"
        )
    require_builder(plan)
    wrong = verify_files(opened)
    if wrong:
        raise BundleError(f"bundle {source} is damaged: {'; '.join(wrong)}; export it again")
    old = opened.manifest.plan
    made = () if old is None else (old.file, old.graph)
    with staged_directory(out, force=force) as staged:
        for entry in opened.manifest.files:
            if entry.name not in made:
                _link(opened.file(entry.name), staged / entry.name)
        name = out.resolve().name
        manifest = add_plan(staged, name, replace(opened.manifest, plan=None), plan, max_len, progress)
        manifest = write_manifest(staged, manifest)
    return Bundle(out, manifest)


def _link(source: Path, target: Path) -> None:
    """The same file under a second name where the file system allows it."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)

"""The demo model's bundles, exported once a session."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from sssd.export import export_model
from sssd.spec import WeightType
from tests.helpers.data import demo_model

BundleOf = Callable[[WeightType], Path]


@pytest.fixture(scope="session")
def bundle_of(tmp_path_factory: pytest.TempPathFactory) -> BundleOf:
    """The demo model's bundle with the given weights."""
    directory = tmp_path_factory.mktemp("demo")

    def export(weights: WeightType) -> Path:
        out = directory / weights
        if not out.exists():
            export_model(demo_model(), out, weights=weights)
        return out

    return export

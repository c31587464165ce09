"""Export: from a checkpoint to a bundle. Owns the two entry points; knows neither how models run nor who asks."""

from __future__ import annotations

from sssd.export.pipeline import Progress, check_bundle, export_model

__all__ = ["Progress", "check_bundle", "export_model"]

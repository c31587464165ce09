"""Names that both sides of a traced export use. Knows neither side."""

from __future__ import annotations

DOMAIN = "sssd"  # of the two operators that Optimum's exporter does not know at its opset

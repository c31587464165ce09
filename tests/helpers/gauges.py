"""A server's gauges at some moment, made up."""

from __future__ import annotations

from pathlib import Path

from sssd.drafting.store_live import LiveStats
from sssd.drafting.store_shelf import Holdings
from sssd.runtime.budget import BudgetStats
from sssd.runtime.loop import PhaseTimes
from sssd.server.gauges import DatastoreGauges, LoopGauges

BUDGET = BudgetStats(n_speculating=7, n_plain=3, n_switches=2, n_probes=1, trust=0.5, widths=((2, 3), (9, 7)))
LOOP = LoopGauges(4, 3, 5, 64, 1, 2, 6, PhaseTimes(steps=12, propose=2_000_000_000), BUDGET)
STORE = DatastoreGauges(Path("x"), n_tokens=50, n_bytes=700, present=False)
LIVE = LiveStats(Holdings(("default",), 3, 70, 2, 1, 4, 0, 9000, None), 1, 2, "disk full")

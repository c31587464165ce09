"""A benchmark as one HTML file: plots, warnings, every figure. Nothing in it is loaded from elsewhere.

Knows figures only; plots are drawn by `plots`, words are those of `report`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path

from sssd.bench.modes import BASELINE
from sssd.bench.plots import Bar, Bars, Curve, Point, bar_plot, curve_plot
from sssd.bench.report import HEADS, LOAD_HEADS, Report, facts, load_row, row
from sssd.bench.run import ALL_TASKS
from sssd.bench.summary import Record, merge_bins
from sssd.errors import SssdError

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #111; max-width: 60rem; margin: 2rem auto; padding: 0 1rem }
h1 { font-size: 1.5rem } h2 { font-size: 1.1rem; margin: 2rem 0 .3rem } p { margin: .3rem 0 }
svg { width: 100%; font: 12px system-ui, sans-serif } .wide { overflow-x: auto }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: 13px }
th, td { padding: .15rem .6rem; text-align: right; border-bottom: 1px solid #e5e7eb; white-space: nowrap }
.names th, .names td { text-align: left; vertical-align: top }
.names td { white-space: normal; overflow-wrap: anywhere }
.figures td:first-child, .figures th:first-child { text-align: left }
.warnings { background: #fef3c7; padding: .6rem 1rem; border-radius: .4rem } li { margin: .2rem 0 }
"""


def write_html(report: Report, path: Path) -> None:
    """Write the page beside `path` and rename it. Raises SssdError when it cannot be written."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        beside.write_text(page(report), "utf-8")
        beside.replace(path)
    except OSError as e:
        beside.unlink(missing_ok=True)
        raise SssdError(f"cannot write {path}: {e.strerror}; choose a place that can be written") from None


def page(report: Report) -> str:
    """The whole page."""
    title = escape(f"sssd bench: {report.about.model}, {report.about.weights}")
    body = "\n".join([*_head(report), *_plots(report.records), *_figures(report.records)])
    return (
        f'<!doctype html>\n<html lang="en">\n<head><meta charset="utf-8"><title>{title}</title>'
        f"<style>{_STYLE}</style></head>\n<body>\n<h1>{title}</h1>\n{body}\n</body>\n</html>\n"
    )


def _head(report: Report) -> Iterator[str]:
    lines = "".join(f"<tr><th>{escape(name)}</th><td>{escape(text)}</td></tr>" for name, text in facts(report.about))
    yield f'<table class="names">{lines}</table>'
    if report.about.warnings:
        items = "".join(f"<li>{escape(w)}</li>" for w in report.about.warnings)
        yield f'<h2>Read with care</h2><ul class="warnings">{items}</ul>'


def _plots(records: Sequence[Record]) -> Iterator[str]:
    offline = [r for r in records if r.rate is None]
    for batch in dict.fromkeys(r.batch for r in offline):
        those = [r for r in offline if r.batch == batch and r.mode != BASELINE]
        if those:
            yield _section(
                f"Speed-up by task, batch {batch}",
                "Seconds of plain decoding over seconds of the mode, reading included; whiskers hold 95 % of "
                "bootstrap resamples.",
                _speedups(those),
            )
    load = [r for r in records if r.rate is not None]
    if load:
        yield _section(
            "Latency against throughput",
            "One point a rate of arrivals: the median answer's seconds, from arrival to last token.",
            _load_curves(load),
        )
    single = [r for r in records if r.task != ALL_TASKS or r.rate is not None]
    drafting = [r for r in single if r.drafted]
    if drafting:
        yield _section(
            "Accepted draft tokens in a step", "Share of steps by how many drafts were right.", _lengths(drafting)
        )
    judged = [r for r in single if r.reliability]
    if judged:
        yield _section(
            "Reliability of the confidences",
            "Predicted against observed acceptance of draft tokens; on the dashed line both agree.",
            _reliability(judged),
        )


def _section(title: str, words: str, plot: str) -> str:
    return f"<h2>{escape(title)}</h2><p>{escape(words)}</p>\n{plot}"


def _modes(records: Sequence[Record]) -> list[str]:
    return list(dict.fromkeys(r.mode for r in records))


def _speedups(records: Sequence[Record]) -> str:
    tasks = list(dict.fromkeys(r.task for r in records))
    by_key = {(r.mode, r.task): Bar(r.speedup, r.speedup_low, r.speedup_high) for r in records}
    series = [Bars(mode, tuple(by_key.get((mode, task)) for task in tasks)) for mode in _modes(records)]
    return bar_plot(tasks, series, y_label="speed-up", line_at=1.0)


def _load_curves(records: Sequence[Record]) -> str:
    curves = [
        Curve(
            mode,
            tuple(
                Point(r.tokens_per_s, r.latency_ms.p50 / 1000)
                for r in sorted(records, key=lambda r: r.rate or 0.0)
                if r.mode == mode
            ),
        )
        for mode in _modes(records)
    ]
    return curve_plot(curves, x_label="tokens a second", y_label="seconds an answer")


def _lengths(records: Sequence[Record]) -> str:
    longest = max(length for r in records for length in r.accepted_lengths)
    series = []
    for mode in _modes(records):
        counts = [sum(r.accepted_lengths.get(n, 0) for r in records if r.mode == mode) for n in range(longest + 1)]
        shares = [n / sum(counts) for n in counts]
        series.append(Bars(mode, tuple(Bar(s, s, s) for s in shares)))
    return bar_plot([str(n) for n in range(longest + 1)], series, y_label="share of steps")


def _reliability(records: Sequence[Record]) -> str:
    curves = []
    for mode in _modes(records):
        bins = merge_bins(b for r in records if r.mode == mode for b in r.reliability)
        curves.append(Curve(mode, tuple(Point(b.predicted, b.observed) for b in bins)))
    return curve_plot(curves, x_label="predicted", y_label="observed", diagonal=True)


def _figures(records: Sequence[Record]) -> Iterator[str]:
    offline = [r for r in records if r.rate is None]
    load = [r for r in records if r.rate is not None]
    if offline:
        yield f"<h2>Offline</h2>{_table(HEADS, [row(r) for r in offline])}"
    if load:
        yield f"<h2>Under load</h2>{_table(LOAD_HEADS, [load_row(r) for r in load])}"
    phases = [p.name for p in records[0].phases]
    cells = [
        (r.mode, str(r.batch), r.task, "" if r.rate is None else f"{r.rate:g}", *(f"{p.mean_us:.0f}" for p in r.phases))
        for r in records
    ]
    yield f"<h2>Microseconds a step</h2>{_table(('mode', 'batch', 'task', 'rate', *phases), cells)}"
    widths = [(r.mode, str(r.batch), r.task, ", ".join(f"{w}: {n}" for w, n in r.widths.items())) for r in records]
    yield f"<h2>Forwards by width</h2>{_table(('mode', 'batch', 'task', 'width: forwards'), widths)}"


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    top = "".join(f"<th>{escape(h)}</th>" for h in heads)
    body = "".join("<tr>" + "".join(f"<td>{escape(c)}</td>" for c in cells) + "</tr>" for cells in rows)
    return f'<div class="wide"><table class="figures"><tr>{top}</tr>{body}</table></div>'

"""Plots as inline SVG: grouped bars with whiskers, and curves. Knows no benchmark; numbers and names come in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from math import ceil, floor, log10
from typing import NamedTuple

COLOURS = ("#6b7280", "#2563eb", "#d97706", "#059669", "#dc2626", "#7c3aed")
_WIDTH, _HEIGHT = 760, 300
_LEFT, _RIGHT, _TOP, _BOTTOM = 56, 16, 34, 44


class Bar(NamedTuple):
    """A value and its interval; one of no width has no whisker."""

    value: float
    low: float
    high: float


class Point(NamedTuple):
    """Of a curve."""

    x: float
    y: float


@dataclass(frozen=True, slots=True)
class Bars:
    """One series of bars, a bar (or none) for each name of the axis."""

    name: str
    bars: tuple[Bar | None, ...]


@dataclass(frozen=True, slots=True)
class Curve:
    """One series of points, joined in their order."""

    name: str
    points: tuple[Point, ...]


@dataclass(frozen=True, slots=True)
class _Axis:
    """From a value between 0 and `top` to a pixel between `start` and `end`."""

    top: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        return self.start + (self.end - self.start) * value / self.top


def ticks(top: float) -> tuple[float, ...]:
    """Round values from 0 up to at least `top`, four to ten of them, in steps of 1, 2 or 5."""
    if top <= 0:
        return (0.0, 1.0)
    size: float = 10.0 ** floor(log10(top / 4))
    step = max(s for s in (size, 2 * size, 5 * size) if s <= top / 4 * (1 + 1e-9))
    return tuple(i * step for i in range(ceil(top / step - 1e-9) + 1))


def bar_plot(names: Sequence[str], series: Sequence[Bars], *, y_label: str, line_at: float | None = None) -> str:
    """Groups of bars; `line_at` draws a dashed line across, where a ratio means nothing changed."""
    highest = max([b.high for s in series for b in s.bars if b is not None] + [line_at or 0.0])
    marks = ticks(highest)
    y = _Axis(marks[-1], _HEIGHT - _BOTTOM, _TOP)
    room = (_WIDTH - _LEFT - _RIGHT) / max(len(names), 1)
    thick = 0.8 * room / max(len(series), 1)
    parts = [*_frame([s.name for s in series], y_label), *_y_marks(y, marks)]
    for i, name in enumerate(names):
        middle = _LEFT + room * (i + 0.5)
        parts.append(_text(middle, _HEIGHT - _BOTTOM + 16, name, anchor="middle"))
        for j, one in enumerate(series):
            bar = one.bars[i]
            if bar is not None:
                parts += _bar(bar, y, middle + thick * (j - len(series) / 2), thick, COLOURS[j % len(COLOURS)])
    if line_at is not None:
        parts.append(_line(_LEFT, y(line_at), _WIDTH - _RIGHT, y(line_at), "#111", dashed=True))
    return _svg(parts)


def _bar(bar: Bar, y: _Axis, left: float, thick: float, colour: str) -> list[str]:
    top = y(bar.value)
    told = escape(f"{bar.value:.3g} ({bar.low:.3g} to {bar.high:.3g})" if bar.low < bar.high else f"{bar.value:.3g}")
    parts = [
        f'<rect x="{left:.1f}" y="{top:.1f}" width="{0.9 * thick:.1f}" height="{y.start - top:.1f}" '
        f'fill="{colour}"><title>{told}</title></rect>'
    ]
    if bar.low < bar.high:
        middle = left + 0.45 * thick
        parts.append(_line(middle, y(bar.low), middle, y(bar.high), "#111"))
    return parts


def curve_plot(curves: Sequence[Curve], *, x_label: str, y_label: str, diagonal: bool = False) -> str:
    """Joined points; `diagonal` draws the line on which y equals x."""
    points = [p for c in curves for p in c.points]
    x_marks, y_marks = ticks(max([p.x for p in points], default=0)), ticks(max([p.y for p in points], default=0))
    x = _Axis(x_marks[-1], _LEFT, _WIDTH - _RIGHT)
    y = _Axis(y_marks[-1], _HEIGHT - _BOTTOM, _TOP)
    parts = [*_frame([c.name for c in curves], y_label), *_y_marks(y, y_marks)]
    parts += [_text(x(m), _HEIGHT - _BOTTOM + 16, f"{m:g}", anchor="middle") for m in x_marks]
    parts.append(_text((_LEFT + _WIDTH - _RIGHT) / 2, _HEIGHT - 8, x_label, anchor="middle"))
    if diagonal:
        end = min(x.top, y.top)
        parts.append(_line(x(0), y(0), x(end), y(end), "#111", dashed=True))
    for i, curve in enumerate(curves):
        colour = COLOURS[i % len(COLOURS)]
        path = " ".join(f"{x(p.x):.1f},{y(p.y):.1f}" for p in curve.points)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts += [
            f'<circle cx="{x(p.x):.1f}" cy="{y(p.y):.1f}" r="3" fill="{colour}">'
            f"<title>{escape(f'{curve.name}: {p.x:.3g}, {p.y:.3g}')}</title></circle>"
            for p in curve.points
        ]
    return _svg(parts)


def _svg(parts: Sequence[str]) -> str:
    body = "\n".join(parts)
    return f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img">\n{body}\n</svg>'


def _frame(names: Sequence[str], y_label: str) -> list[str]:
    """The legend, and what the y axis is."""
    parts = [_text(4, 14, y_label, anchor="start")]
    at = _WIDTH - _RIGHT - sum(26 + 7.2 * len(name) for name in names)
    for i, name in enumerate(names):
        parts.append(f'<rect x="{at:.1f}" y="5" width="10" height="10" fill="{COLOURS[i % len(COLOURS)]}"/>')
        parts.append(_text(at + 14, 14, name, anchor="start"))
        at += 26 + 7.2 * len(name)
    return parts


def _y_marks(y: _Axis, marks: Sequence[float]) -> list[str]:
    parts = []
    for mark in marks:
        parts.append(_line(_LEFT, y(mark), _WIDTH - _RIGHT, y(mark), "#e5e7eb"))
        parts.append(_text(_LEFT - 6, y(mark) + 4, f"{mark:g}", anchor="end"))
    return parts


def _line(x1: float, y1: float, x2: float, y2: float, colour: str, *, dashed: bool = False) -> str:
    dash = ' stroke-dasharray="4 3"' if dashed else ""
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}"{dash}/>'


def _text(x: float, y: float, text: str, *, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'

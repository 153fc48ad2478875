"""Charts of what runs reached, and how."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import torch

from .style import INK, MUTED, colors_of, quiet

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def draw_bars(
    axes: "Axes", values: Mapping[str, Sequence[float]], p_values: Mapping[tuple[str, str], float] | None = None
) -> None:
    """A bar for each variant: the mean of its runs with its standard error, the runs as dots, p-values above.

    Differences between variants are small beside their values, so the axis does not start at 0, and says so.
    """
    names, colors = list(values), colors_of(values)
    every = [value for runs in values.values() for value in runs]
    span = (max(every) - min(every)) or abs(max(every)) or 1.0
    floor, top = min(every) - 0.4 * span, max(every) + 0.12 * span
    for x, name in enumerate(names):
        runs = torch.tensor(values[name], dtype=torch.float64)
        axes.bar(x, float(runs.mean()) - floor, bottom=floor, width=0.62, color=colors[name])
        apart = torch.linspace(-0.15, 0.15, len(runs)) if len(runs) > 1 else torch.zeros(1)
        axes.plot(x + apart, runs, "o", markersize=3.5, mfc="white", mec=INK, mew=0.7)
        if len(runs) > 1:
            error = float(runs.std()) / math.sqrt(len(runs))
            axes.errorbar(x, float(runs.mean()), error, color=INK, capsize=5, linewidth=1.3)
    bars = {tuple(sorted((names.index(a), names.index(b)))): p for (a, b), p in (p_values or {}).items()}
    brackets = _brackets(bars)
    for left, right, level in brackets:
        height = top + 0.2 * span * level
        a, b, foot = left + 0.04, right - 0.04, height - 0.05 * span  # brackets on one level don't touch
        axes.plot([a, a, b, b], [foot, height, height, foot], color=MUTED, linewidth=0.8)
        p = bars[left, right]
        text = "< 0.001" if p < 0.001 else f"{p:.3f}"
        axes.annotate(text, ((a + b) / 2, height), (0, 1), textcoords="offset points", ha="center", fontsize=7)
    levels = 1 + max((level for *_, level in brackets), default=-1)
    axes.set(xlim=(-0.6, len(names) - 0.4), ylim=(floor, top + 0.2 * span * levels))
    axes.set_xticks(range(len(names)), [name.replace("_", "\n") for name in names])
    axes.tick_params(axis="x", length=0)
    quiet(axes)
    axes.set_xlabel("brackets: p-values; " * bool(bars) + f"the axis starts at {floor:.3g}", fontsize=7, color=MUTED)


def _brackets(pairs: Iterable[tuple[int, ...]]) -> list[tuple[int, int, int]]:
    """(left, right, level) for brackets over pairs of bars: short ones low, as few levels as keep them apart."""
    placed: list[tuple[int, int, int]] = []
    for left, right in sorted(pairs, key=lambda pair: (pair[1] - pair[0], *pair)):
        taken = {level for a, b, level in placed if left < b and a < right}
        placed.append((left, right, min(set(range(len(placed) + 1)) - taken)))
    return placed


def draw_curves(axes: "Axes", curves: Mapping[str, Sequence[tuple[Sequence[float], Sequence[float]]]]) -> None:
    """For each variant its runs, (x, y) each, as thin lines, and their mean as a thick one where all have a value."""
    colors = colors_of(curves)
    for name, runs in curves.items():
        at: dict[float, list[float]] = {}
        for x, y in runs:
            axes.plot(x, y, color=colors[name], marker=None if len(x) > 1 else ".", linewidth=0.7, alpha=0.45)
            for place, value in zip(x, y, strict=True):
                at.setdefault(place, []).append(value)
        mean = {x: sum(y) / len(y) for x, y in sorted(at.items()) if len(y) == len(runs)}
        axes.plot(list(mean), list(mean.values()), color=colors[name], linewidth=1.8, label=name.replace("_", " "))
    axes.locator_params(axis="x", integer=True)
    axes.legend(frameon=False, fontsize=8)
    quiet(axes)

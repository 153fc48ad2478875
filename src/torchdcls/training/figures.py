"""Figures of finished runs, made with :mod:`torchdcls.plots` from what lies in their folders."""

import math
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from .. import plots
from ..interpolation import find_interpolation
from ..sharing import stage_of
from .results import MEASURES, TESTED, Run, find_differences, values_by_variant

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLUMNS = 8  # kernels of each stage whose elements are followed


def of_comparison(runs: Sequence[Run]) -> "Iterator[tuple[str, Figure]]":
    """Figures of all runs of one recipe, by name: for each measure the results, and the way there."""
    for measure in TESTED:
        if values_by_variant(runs, measure):
            yield measure, draw_results(runs, measure)
            yield f"{measure}_by_epoch", draw_learning(runs, measure)


def of_run(run: Run) -> "Iterator[tuple[str, Figure]]":
    """Figures of one run, by name, those that there are: a stock model has no positions."""
    for name, draw in (("kernels", draw_kernels), ("paths", draw_paths), ("movement", draw_movement)):
        if (figure := draw(run)) is not None:
            yield name, figure


def draw_results(runs: Sequence[Run], measure: str) -> "Figure":
    """A measure of each variant, with standard errors and p-values."""
    values = values_by_variant(runs, measure)
    tests = find_differences(runs)[measure]
    figure = plots.new_figure(max(3.6, 0.85 * len(values) + 0.8), 3.2)
    axes = figure.subplots()
    plots.draw_bars(axes, values, {(test.first, test.second): test.p for test in tests})
    axes.set_ylabel(_label(measure))
    return figure


def draw_learning(runs: Sequence[Run], measure: str) -> "Figure":
    """A measure of each run by epoch, and the means of variants."""
    curves: dict[str, list[tuple[list[float], list[float]]]] = {}
    for run in runs:
        curves.setdefault(run.variant, []).append(run.curve(measure))
    figure = plots.new_figure(4.2, 3)
    axes = figure.subplots()
    plots.draw_curves(axes, curves)
    axes.set(xlabel="epoch", ylabel=_label(measure))
    return figure


def _label(measure: str) -> str:
    name = MEASURES[measure][0]
    return name if "loss" in name else f"{name} on validation images (%)"


def draw_kernels(run: Run) -> "Figure | None":
    """Kernels of each stage as the run left them; None where its checkpoints are gone, or no layer is of that kind."""
    from .history import has_kernels
    from .trained import load_trained

    try:
        network = load_trained(run.folder).predict
    except FileNotFoundError:
        return None
    if not isinstance(network, nn.Module) or not has_kernels(network):
        return None
    figure = plots.new_figure(8, 5)
    plots.draw_model(figure, network, COLUMNS)
    return figure


def histories(run: Run, kind: str) -> dict[str, Tensor]:
    """For each stage the history of its first ``position`` or ``sigma``, ``(E, M, n, m)``."""
    found: dict[str, Tensor] = {}
    for name, history in run.placements[1].items():
        if name.split(".")[-1] == kind:
            found.setdefault(stage_of(name), history.flatten(2, -2))
    return found


def draw_paths(run: Run) -> "Figure | None":
    """The ways of elements through training, a row of kernels for each stage; None for a stock model."""
    found = histories(run, "position")
    if not found:
        return None
    figure = plots.new_figure(8, 1.3 * len(found))
    side = _side(run, found.values())
    for axes, (stage, history) in zip(figure.subplots(len(found), 1, squeeze=False)[:, 0], found.items(), strict=True):
        plots.draw_trajectories(axes, history[:, :, :COLUMNS], [side] * history.shape[1], COLUMNS)
        title = stage or "all layers"
        if side < run.summary["size"]:
            title += f", the middle {side} of {run.summary['size']} taps"
        axes.set_title(title, loc="left", fontsize=8, pad=2)
    return figure


def animate(run: Run, path: Path) -> bool:
    """Write the same as an animation, where all stages have as many elements a kernel; say whether it was."""
    found = list(histories(run, "position").values())
    if not found or len({(history.shape[1], history.shape[-1]) for history in found}) > 1:
        return False
    kernels = torch.cat([history[:, :, :COLUMNS] for history in found], dim=2)
    size = [_side(run, found)] * kernels.shape[1]
    plots.animate_positions(path, kernels, size, run.placements[0], COLUMNS)
    return True


def _side(run: Run, found: Iterable[Tensor]) -> int:
    """Taps each way of the middle of the window that holds all elements at all times, or of all of it."""
    reach = max(float(history[:, :, :COLUMNS].abs().max()) for history in found)
    return int(min(run.summary["size"], 2 * math.ceil(reach) + 1))


def draw_movement(run: Run) -> "Figure | None":
    """How far elements have come from their start, and how wide they are; None for a stock model."""
    positions, sigmas = histories(run, "position"), histories(run, "sigma")
    if not positions:
        return None
    figure = plots.new_figure(8 if sigmas else 4.2, 2.8)
    left, *right = figure.subplots(1, 2 if sigmas else 1, squeeze=False)[0]
    epochs = run.placements[0]
    moved = {stage: (history - history[:1]).norm(dim=1) for stage, history in positions.items()}
    plots.draw_spread(left, epochs, moved)
    left.set_ylabel("taps from the start")
    for axes in right:
        interpolation = find_interpolation(run.summary["interpolation"])
        plots.draw_spread(axes, epochs, {stage: interpolation.width(sigma) for stage, sigma in sigmas.items()})
        axes.set_ylabel("width in taps")
        axes.get_legend().remove()
    return figure

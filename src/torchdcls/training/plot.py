"""Draw figures: those of the paper, and those of finished runs.

torchdcls plot paper --output figures              kernels in numbers, profiles
torchdcls plot run runs/digits/gauss-0             kernels, ways of the elements, movement, an animation
torchdcls plot comparison runs/compare-digits --format pdf
"""

import argparse
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from .. import plots
from ..kernel import dense_kernel
from . import figures
from .results import Run, by_recipe, make_table, read_comparison, read_run

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SIZE, DILATION, WIDTH = 9, 4, 5.0
WEIGHT = torch.tensor([0.8, -0.5, 0.6, -0.7, 1.0, -0.4, 0.5, -0.9, 0.7])
SHIFT = torch.tensor(  # how far learned elements lie from a regular grid
    [[-0.4, 0.6, -0.6, 0.4, -0.35, 1.4, 0.5, -0.6, 0.4], [0.35, -0.7, 0.5, -0.65, 0.4, 0.3, 1.35, -0.4, -0.6]]
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Say what the command takes."""
    kinds = parser.add_subparsers(dest="kind", required=True, metavar="paper | run | comparison")
    paper = kinds.add_parser("paper", help="the paper's figures of kernels and profiles")
    run = kinds.add_parser("run", help="figures of one run, and an animation of its elements")
    run.add_argument("folder", type=Path, help="of a finished run")
    comparison = kinds.add_parser("comparison", help="figures of a comparison, and of the first run of each variant")
    comparison.add_argument("folder", type=Path, help="of the comparison")
    for kind in (paper, run, comparison):
        kind.add_argument("--output", type=Path, help="folder for the figures (default: figures, in the folder drawn)")
        kind.add_argument("--format", choices=("png", "pdf", "svg"), default="png", help="(default: png)")


def run(arguments: argparse.Namespace) -> int:
    """Draw, and print the name of each file."""
    folder: Path = getattr(arguments, "folder", Path())
    output: Path = arguments.output or folder / "figures"
    runs: dict[str, Run] = {}
    if arguments.kind == "paper":
        drawn = of_paper()
    elif arguments.kind == "run":
        runs = {"": _read(folder)}
        drawn = figures.of_run(runs[""])
    else:
        comparison = read_comparison(folder)
        runs = {f"{row.runs[0].recipe}_{row.runs[0].variant}_": row.runs[0] for row in make_table(comparison)}
        drawn = _of_comparison(comparison, runs)
    output.mkdir(parents=True, exist_ok=True)
    for name, figure in drawn:
        path = output / f"{name}.{arguments.format}"
        figure.savefig(path, dpi=200, facecolor="white")
        print(path)
    for name, which in runs.items():
        path = output / f"{name}positions.gif"
        if figures.animate(which, path):
            print(path)
    return 0


def _read(folder: Path) -> Run:
    run = read_run(folder, folder.parent.name, folder.name, 0)
    if run is None:
        raise FileNotFoundError(f"folder must be that of a complete run, found no summary.json in {folder}")
    return run


def _of_comparison(runs: Sequence[Run], first: Mapping[str, Run]) -> "Iterator[tuple[str, Figure]]":
    for recipe, members in by_recipe(runs).items():
        yield from ((f"{recipe}_{name}", figure) for name, figure in figures.of_comparison(members))
    for prefix, which in first.items():
        yield from ((f"{prefix}{name}", figure) for name, figure in figures.of_run(which))


def of_paper() -> "Iterator[tuple[str, Figure]]":
    """Kernels of the four kinds with their numbers, and the profiles for a width of 5."""
    figure = plots.new_figure(8, 8.4)
    kernels = paper_kernels()
    limit = float(WEIGHT.abs().max())
    for axes, (title, (kernel, position)) in zip(figure.subplots(2, 2).flat, kernels.items(), strict=True):
        plots.draw_numbers(axes, kernel, limit)
        if position is not None:
            axes.plot(position[1], position[0], "o", color=plots.INK, ms=4.5, mec="white", mew=0.8)
        axes.set_title(title, fontsize=10)
    yield "kernels", figure
    figure = plots.new_figure(6, 3)
    plots.draw_profiles(figure.subplots(), width=WIDTH)
    yield "profiles", figure


def paper_kernels() -> dict[str, tuple[Tensor, Tensor | None]]:
    """The paper's kinds of kernels, ``(9, 9)``, of 9 elements with the same weights; learned positions, ``(2, 9)``."""
    rows, columns = torch.cartesian_prod(torch.arange(-1.0, 2.0), torch.arange(-1.0, 2.0)).T
    grid = torch.stack([rows, columns])
    learned = grid * DILATION * 0.75 + SHIFT
    width = torch.full_like(learned, 0.3)

    def on_taps(position: Tensor) -> Tensor:
        return dense_kernel(WEIGHT, position, None, SIZE, "bilinear")

    return {
        "standard 3×3": (on_taps(grid), None),
        f"3×3, dilation {DILATION}": (on_taps(grid * DILATION), None),
        "learnable spacings, bilinear": (on_taps(learned), learned),
        "learnable spacings, Gaussian": (dense_kernel(WEIGHT, learned, width, SIZE, "gauss"), learned),
    }

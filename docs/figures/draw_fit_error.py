"""Measure and draw `fit_error.png`: how close so many elements come to a given kernel.

    python -m docs.figures.draw_fit_error

Four kinds of kernels, 32 of each, are fitted by what `to_dcls(..., start="fit")` uses, for each interpolation and
count. The error is the norm of what is missed as a share of the norm of the kernel, averaged over the kernels. The
trained kernels are those of a small ConvNeXt that learns to read digits first. Writes `fit_error.csv`, too, and the
table of `choosing.md`. Takes a few minutes.
"""

import csv
import math
import re
from pathlib import Path
from typing import Any

import torch
from examples.convert_train_fuse_export import digits, make_model, train
from torch import Tensor

from torchdcls import is_depthwise
from torchdcls.fitting import fit
from torchdcls.interpolation import INTERPOLATIONS

HERE = Path(__file__).parent
RESULTS, FIGURE, PAGE = HERE / "fit_error.csv", HERE / "fit_error.png", HERE.parent / "choosing.md"
KERNELS, COUNTS = 32, (4, 9, 13, 16, 20, 26, 34, 49)
IN_TABLE = (9, 16, 26, 34)
LARGEST = "largest taps"
COLORS, MARKERS = ("#000000", "#E69F00", "#0072B2", "#009E73", "#CC79A7", "#56B4E9"), "s^oDvx"
Errors = dict[tuple[str, str, int], float]  # (kind, interpolation, count) -> error


def trained() -> Tensor:
    """7x7 kernels of a network, ``(KERNELS, 7, 7)``, from all of its stages."""
    images, labels = digits(classes=10)
    model = make_model(classes=10)
    train(model, images[:4000], labels[:4000], epochs=4, lr=3e-3)
    depthwise: list[Any] = [part for name, part in model.named_modules() if is_depthwise(name, part)]
    kernels = torch.cat([part.weight.detach()[:, 0] for part in depthwise])
    return kernels[torch.randperm(len(kernels))[:KERNELS]]


def smooth(size: int) -> Tensor:
    """Waves under a bell, of random direction, length, place and extent: ``(KERNELS, size, size)``."""
    tap = torch.arange(size) - size // 2
    place = (torch.rand(2, KERNELS, 1, 1) - 0.5) * size / 3
    y, x = tap.view(1, -1, 1) - place[0], tap.view(1, 1, -1) - place[1]
    angle, length, phase = (torch.rand(3, KERNELS, 1, 1) * 2 * math.pi).unbind()
    along = angle.cos() * x + angle.sin() * y
    wave = torch.cos(along / (size / 23 * (1.5 + length / 4)) + phase)
    extent = size * (0.1 + 0.1 * torch.rand(KERNELS, 1, 1))
    return wave * torch.exp(-(x**2 + y**2) / (2 * extent**2))


def targets() -> dict[str, Tensor]:
    """What is to be fitted, each ``(KERNELS, size, size)``."""
    return {
        "trained 7x7": trained(),
        "noise 7x7": torch.randn(KERNELS, 7, 7),
        "smooth 23x23": smooth(23),
        "noise 23x23": torch.randn(KERNELS, 23, 23),
    }


def largest_taps(kernels: Tensor, count: int) -> float:
    """The error of keeping the ``count`` largest taps and nothing else: what a sparse kernel could do at best."""
    energy = kernels.flatten(1).square().sort(descending=True).values
    return float((1 - energy[:, :count].sum(1) / energy.sum(1)).clamp_min(0).sqrt().mean())


def measure() -> Errors:
    """Fit everything."""
    torch.manual_seed(0)
    errors: Errors = {}
    for kind, kernels in targets().items():
        for count in COUNTS:
            errors[kind, LARGEST, count] = largest_taps(kernels, count)
            for interpolation in INTERPOLATIONS:
                with torch.no_grad():
                    left = fit(kernels.double().unsqueeze(0), count, interpolation).left
                errors[kind, interpolation.name, count] = float(left.clamp_min(0).sqrt().mean())
            print(kind, count, flush=True)
    return errors


def table(errors: Errors) -> str:
    """The page's: kinds of kernels and counts down, interpolations across."""
    names = [LARGEST, *(interpolation.name for interpolation in INTERPOLATIONS)]
    lines = [f"| kernels | elements | {' | '.join(names)} |", "|---|---:" + "|---:" * len(names) + "|"]
    for kind in dict.fromkeys(kind for kind, _, _ in errors):
        for count in IN_TABLE:
            cells = [f"{100 * errors[kind, name, count]:.0f}%" for name in names]
            lines.append(f"| {kind if count == IN_TABLE[0] else ''} | {count} | {' | '.join(cells)} |")
    return "\n".join(lines)


def read() -> Errors:
    """The errors that were measured last."""
    with RESULTS.open() as file:
        return {(r["kernels"], r["interpolation"], int(r["count"])): float(r["error"]) for r in csv.DictReader(file)}


def with_table(page: str, errors: Errors) -> str:
    """The page with the table as the errors have it."""
    return re.sub(
        r"(<!-- fit error -->\n).*?(<!-- end -->)", lambda m: m[1] + table(errors) + "\n" + m[2], page, flags=re.DOTALL
    )


def draw(errors: Errors) -> None:
    """A panel for each kind of kernels."""
    from matplotlib.figure import Figure  # unlike pyplot it needs no display

    kinds = list(dict.fromkeys(kind for kind, _, _ in errors))
    figure = Figure(figsize=(11, 3.4), dpi=110, layout="constrained")
    panels = figure.subplots(1, len(kinds), sharey=True)
    for axes, kind in zip(panels, kinds, strict=True):
        axes.plot(COUNTS, [errors[kind, LARGEST, c] for c in COUNTS], ":", color="#777777", label=LARGEST)
        for interpolation, color, marker in zip(INTERPOLATIONS, COLORS, MARKERS, strict=True):
            values = [errors[kind, interpolation.name, c] for c in COUNTS]
            axes.plot(COUNTS, values, color=color, marker=marker, markersize=4, lw=1.3, label=interpolation.name)
        axes.set(title=kind, xlabel="elements", ylim=(-0.03, 1.03), xticks=COUNTS)
        axes.tick_params(axis="x", labelsize=8)
        axes.grid(alpha=0.3)
    panels[0].set_ylabel("share of the kernel missed")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False)
    figure.savefig(FIGURE)


def main() -> None:
    """Measure, write, draw."""
    errors = measure()
    with RESULTS.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("kernels", "interpolation", "count", "error"))
        writer.writerows((*key, f"{error:.4f}") for key, error in errors.items())
    PAGE.write_text(with_table(PAGE.read_text(), read()))
    draw(read())


if __name__ == "__main__":
    main()

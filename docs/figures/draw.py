"""Draw ``interpolations.png``: what each interpolation makes of one and the same filter.

    python docs/figures/draw.py

For each interpolation a ``Dcls2d`` layer of 6 elements in an 11x11 window is fitted by gradient to the
target in the first panel. Elements can get stuck, so 64 kernels start at random and the best is shown.
The error is the squared difference as a share of the squared target. The target is smooth, which suits
interpolations with widths, and those have 5 parameters an element against the 3 of bilinear and sinc.
"""

import math
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from torchdcls import Dcls2d, Interpolation
from torchdcls.interpolation import INTERPOLATIONS

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SIZE, ELEMENTS, STARTS, STEPS = 11, 6, 64, 500
OUTPUT = Path(__file__).with_name("interpolations.png")


def make_target() -> Tensor:
    """An oriented edge detector, ``(SIZE, SIZE)``: a wave under a bell."""
    tap = torch.arange(SIZE) - SIZE // 2
    y, x = torch.meshgrid(tap, tap, indexing="ij")
    across = math.cos(0.5) * x + math.sin(0.5) * y
    along = math.cos(0.5) * y - math.sin(0.5) * x
    return torch.cos(2 * math.pi * across / 6.5) * torch.exp(-(across**2) / 12 - along**2 / 12)


def fit(interpolation: Interpolation, target: Tensor) -> tuple[Tensor, Tensor, float]:
    """Kernel ``(SIZE, SIZE)`` and positions ``(2, ELEMENTS)`` of the best start, and its share of error."""
    layer = Dcls2d(1, STARTS, ELEMENTS, SIZE, bias=False, interpolation=interpolation)
    torch.nn.init.uniform_(layer.position, -4, 4)
    moving = [layer.position] if layer.sigma is None else [layer.position, layer.sigma]
    optimizer = torch.optim.Adam([{"params": [layer.weight], "lr": 0.05}, {"params": moving, "lr": 0.05}])
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
    for _ in range(STEPS):
        optimizer.zero_grad()
        torch.autograd.backward((layer.dense_kernel() - target).square().sum())
        optimizer.step()
        schedule.step()
        layer.clamp_positions_()
    kernels = layer.dense_kernel().detach()
    errors = (kernels - target).square().sum((1, 2, 3)) / target.square().sum()
    best = int(errors.argmin())
    return kernels[best, 0], layer.position.detach()[:, best, 0], float(errors[best])


def draw_kernel(axes: "Axes", kernel: Tensor, limit: float, title: str) -> None:
    """Show a kernel on a scale from ``-limit``, blue, to ``limit``, red."""
    half = SIZE / 2
    axes.imshow(kernel.numpy(), cmap="RdBu_r", vmin=-limit, vmax=limit, extent=(-half, half, half, -half))
    axes.set(xlim=(-half, half), ylim=(half, -half), xticks=(), yticks=())
    axes.set_title(title, fontsize=20, pad=9)


def main() -> None:
    """Fit every interpolation and write the figure beside this file."""
    from matplotlib.figure import Figure  # unlike pyplot it needs no display

    torch.set_num_threads(1)
    torch.manual_seed(0)
    target = make_target()
    limit = float(target.abs().max())
    figure = Figure(figsize=(18, 3.4), dpi=100)
    figure.subplots_adjust(left=0.006, right=0.994, top=0.85, bottom=0.13, wspace=0.07)
    first, *others = figure.subplots(1, 1 + len(INTERPOLATIONS))
    draw_kernel(first, target, limit, "target")
    for axes, interpolation in zip(others, INTERPOLATIONS, strict=True):
        kernel, position, error = fit(interpolation, target)
        draw_kernel(axes, kernel, limit, interpolation.name)
        axes.plot(*position.flip(0).numpy(), "o", color="black", markeredgecolor="white", markersize=8)
        axes.set_xlabel(f"error {100 * error:.0f}%", fontsize=16, labelpad=8)
    figure.savefig(OUTPUT)


if __name__ == "__main__":
    main()

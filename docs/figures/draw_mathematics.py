"""Draw `profiles.png` and `separable.png`: interpolations on one axis, and how two axes make a kernel.

python docs/figures/draw_mathematics.py
"""

from pathlib import Path

import torch
from matplotlib.figure import Figure  # unlike pyplot it needs no display
from torch import Tensor

from torchdcls import dense_kernel
from torchdcls.interpolation import INTERPOLATIONS, gauss

HERE = Path(__file__).parent
COLORS = ("#000000", "#E69F00", "#0072B2", "#009E73", "#CC79A7", "#56B4E9")


def profile_of(interpolation_index: int, x: Tensor) -> Tensor:
    """An interpolation at the width that it starts with."""
    interpolation = INTERPOLATIONS[interpolation_index]
    if interpolation.initial_sigma is None:
        return interpolation.profile(x, None)
    return interpolation.profile(x, interpolation.width(torch.tensor(interpolation.initial_sigma)))


def draw_profiles() -> None:
    """Three panels: those with a narrow reach, those with a long one, and the Gaussian at several widths."""
    figure = Figure(figsize=(10, 2.9), dpi=110, layout="constrained")
    narrow, wide, widths = figure.subplots(1, 3, sharey=True)
    x = torch.linspace(-4, 4, 801)
    for axes, names in ((narrow, ("bilinear", "triangle", "gauss", "hypergauss")), (wide, ("lorentz", "sinc"))):
        for index, interpolation in enumerate(INTERPOLATIONS):
            if interpolation.name in names:
                style = "--" if interpolation.name == "triangle" else "-"
                axes.plot(x, profile_of(index, x), style, color=COLORS[index], label=interpolation.name)
    for sigma, color in ((0.0, "#9ecae1"), (0.23, "#0072B2"), (0.73, "#08519c"), (1.73, "#08306b")):
        width = gauss.width(torch.tensor(sigma))
        widths.plot(1.5 * x, gauss.profile(1.5 * x, width), color=color, label=f"width {width:.2f}")
    narrow.set_title("as they start", fontsize=10)
    wide.set_title("as they start", fontsize=10)
    widths.set_title("gauss, narrow to wide", fontsize=10)
    for axes in (narrow, wide, widths):
        axes.legend(frameon=False, fontsize=8, loc="upper right")
        axes.set(xlabel="distance to the tap", xticks=range(-6, 7, 2) if axes is widths else range(-4, 5))
        axes.grid(alpha=0.3)
    narrow.set_ylabel("share, before the division")
    figure.savefig(HERE / "profiles.png")


def draw_separable() -> None:
    """The profiles of three elements beside and below the kernel that they make."""
    size, middle = 15, 7
    weight = torch.tensor([1.0, -0.9, 0.9])
    position = torch.tensor([[-3.3, 2.0, 2.6], [-2.0, 3.4, -3.7]])
    sigma = torch.tensor([[0.5, 1.6, 0.1], [1.6, 0.4, 0.3]])
    kernel = dense_kernel(weight, position, sigma, (size, size))
    taps = torch.arange(size) - middle
    figure = Figure(figsize=(4.6, 4.6), dpi=110, layout="constrained")
    grid = figure.add_gridspec(2, 2, width_ratios=(1, 3), height_ratios=(3, 1), wspace=0.02, hspace=0.02)
    image = figure.add_subplot(grid[0, 1])
    beside = figure.add_subplot(grid[0, 0], sharey=image)
    below = figure.add_subplot(grid[1, 1], sharex=image)
    edge = middle + 0.5
    limit = float(kernel.abs().max())
    image.imshow(kernel, cmap="RdBu_r", vmin=-limit, vmax=limit, extent=(-edge, edge, edge, -edge), aspect="auto")
    image.plot(position[1], position[0], "o", color="black", markeredgecolor="white", markersize=6)
    image.tick_params(labelbottom=False, labelleft=False)
    for k, color in enumerate(("#b2182b", "#2166ac", "#762a83")):
        rows, columns = (
            gauss.profile(position[axis, k] - taps, gauss.width(sigma[axis, k])) * weight[k] for axis in (0, 1)
        )
        beside.plot(rows, taps, "o-", color=color, markersize=2.5, lw=1)
        below.plot(taps, columns, "o-", color=color, markersize=2.5, lw=1)
    beside.set(ylabel="height", xticks=(-1, 0, 1))
    below.set(xlabel="width", yticks=(-1, 0, 1), xticks=range(-6, 7, 2))
    for axes in (beside, below):
        axes.grid(alpha=0.3)
    figure.savefig(HERE / "separable.png")


if __name__ == "__main__":
    draw_profiles()
    draw_separable()

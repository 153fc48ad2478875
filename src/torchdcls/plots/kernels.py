"""Pictures of kernels, and of what one element gives to the taps around it."""

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor, nn

from ..interpolation import Interpolation, find_interpolation
from ..layers import Convolution, DclsNd
from ..sharing import stage_of
from ..surgery import is_depthwise
from .style import FAINT, INK, MAP, MUTED, colors_of, quiet
from .tiles import Tiles

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure, SubFigure


def draw_kernels(
    where: "Axes | Figure | SubFigure", kernels: Tensor, positions: Tensor | None = None, columns: int | None = None
) -> None:
    """Tile kernels, each on a scale of its own from its largest absolute value below 0 to the same above.

    Args:
        where: axes, or a figure that gets one pair of axes.
        kernels: ``(n, *size)``. 1-D kernels are a row each; the slices of a 3-D kernel stand side by side.
        positions: ``(M, n, m)``, shown as dots; those of elements outside the window are hollow, at its edge.
        columns: kernels in a row; by default as many as rows.
    """
    kernels = kernels.detach().float().cpu()
    if not 2 <= kernels.dim() <= 4 or kernels.numel() == 0:
        raise ValueError(f"kernels must be (n, *size) with one to three axes of size, got shape {tuple(kernels.shape)}")
    tiles = Tiles.of(kernels.shape[1:], len(kernels), columns)
    places = None if positions is None else tiles.place(positions)
    largest = kernels.abs().flatten(1).amax(1).clamp_min(torch.finfo(torch.float32).tiny)
    kernels = kernels.reshape(tiles.count, *tiles.size) / largest.view(-1, 1, 1, 1)
    canvas = torch.full(tiles.shape, math.nan)
    depth, height, width = tiles.size
    for kernel, (top, left) in zip(kernels, tiles.corners.tolist(), strict=True):
        for d in range(depth):
            canvas[top : top + height, left + d * (width + 1) :][:, :width] = kernel[d]
    axes = cast("Axes", where if hasattr(where, "imshow") else where.subplots())
    axes.imshow(canvas.numpy(), cmap=MAP, vmin=-1, vmax=1, interpolation="nearest")
    if places is not None:
        x, y, inside = places
        size = 3 if tiles.columns < 10 else 2
        axes.plot(x[inside], y[inside], "o", ms=size, mfc=INK, mec="white", mew=size / 6)
        axes.plot(x[~inside], y[~inside], "o", ms=size, mfc="none", mec=INK, mew=size / 6)
    tiles.frame(axes)


def draw_model(figure: "Figure | SubFigure", model: nn.Module, columns: int = 12) -> None:
    """A row for each stage: the first kernels of its first Dcls or depthwise layer, with their elements as dots."""
    shown: dict[str, tuple[str, nn.Module]] = {}
    for name, layer in model.named_modules():
        if isinstance(layer, DclsNd) or is_depthwise(name, layer):
            shown.setdefault(stage_of(name), (name, layer))
    if not shown:
        raise ValueError(f"model must hold a Dcls or depthwise layer, got a {type(model).__name__} without one")
    rows = cast("Iterable[Axes]", figure.subplots(len(shown), 1, squeeze=False)[:, 0])
    for axes, (name, layer) in zip(rows, shown.values(), strict=True):
        positions = None
        if isinstance(layer, DclsNd):
            kernel, size = layer.dense_kernel(), layer.dilated_kernel_size
            if not layer.dense_axes:
                positions = layer.position.flatten(1, -2)[:, :columns]
        else:
            kernel, size = cast("Convolution", layer).weight, cast("Convolution", layer).kernel_size
        draw_kernels(axes, kernel.flatten(0, 1)[:columns], positions, columns if len(size) > 1 else 1)
        title = f"{name}, {'x'.join(map(str, size))}"
        if isinstance(layer, DclsNd):
            title += f" / {layer.kernel_count} {layer.interpolation.name}"
            if layer.sigma is not None:
                title += f", mean width {layer.interpolation.width(layer.sigma.detach()).mean():.2f}"
        axes.set_title(title, loc="left", fontsize=7.5, color=INK, pad=2)


def draw_numbers(axes: "Axes", kernel: Tensor, limit: float | None = None) -> None:
    """One kernel, ``(h, w)``, with its numbers in the cells, to hundredths; cells that round to 0 stay empty."""
    kernel = kernel.detach().cpu()
    height, width = kernel.shape
    limit = limit or float(kernel.abs().max())
    top, left = -(height // 2) - 0.5, -(width // 2) - 0.5
    extent = (left, left + width, top + height, top)
    axes.imshow(kernel.numpy(), cmap=MAP, vmin=-limit, vmax=limit, extent=extent)
    axes.hlines([top + i for i in range(height + 1)], left, left + width, color=FAINT, linewidth=0.5)
    axes.vlines([left + i for i in range(width + 1)], top, top + height, color=FAINT, linewidth=0.5)
    for row in range(height):
        for column in range(width):
            value = float(kernel[row, column])
            if abs(value) >= 0.005:
                text = f"{value:.2f}".replace("0.", ".", 1).replace("-", "\N{MINUS SIGN}")
                color = "white" if abs(value) > 0.6 * limit else INK
                place = (left + 0.5 + column, top + 0.5 + row)
                axes.annotate(text, place, ha="center", va="center_baseline", color=color, fontsize=6.5)
    axes.set(xlim=(left, left + width), ylim=(top + height, top), xticks=(-(width // 2), 0, (width - 1) // 2))
    axes.set(yticks=(-(height // 2), 0, (height - 1) // 2))
    axes.tick_params(length=0, labelsize=7, labelcolor=MUTED)
    axes.spines[:].set_visible(False)


def draw_profiles(
    axes: "Axes", interpolations: Sequence[str | Interpolation] = ("triangle", "gauss"), width: float = 5.0
) -> None:
    """What an element on the middle tap gives to each tap, as shares of its weight, for one width."""
    chosen = [find_interpolation(interpolation) for interpolation in interpolations]
    colors = colors_of(interpolation.name for interpolation in chosen)
    reach = math.ceil(3 * width)
    tap, line = torch.arange(-reach, reach + 1.0), torch.linspace(-reach, reach, 1001)
    for interpolation in chosen:
        shares, curve = (interpolation.profile(x, torch.tensor(width)) for x in (tap, line))
        total, color = shares.sum(), colors[interpolation.name]
        axes.fill_between(line, curve / total, color=color, alpha=0.1, linewidth=0)
        axes.plot(line, curve / total, color=color, linewidth=1.6, label=interpolation.name)
        axes.plot(tap, shares / total, "o", color=color, markersize=3)
    axes.set(xlabel="distance to the element, in taps", ylabel="share of its weight", xlim=(-reach, reach))
    axes.set_ylim(bottom=0)
    axes.legend(frameon=False, fontsize=8)
    quiet(axes)

"""Pictures of kernels, positions and results, drawn on figures and axes that the caller makes.

    from torchdcls import plots
    figure = plots.new_figure(6, 3)
    plots.draw_kernels(figure.subplots(), layer.dense_kernel().flatten(0, 1))
    figure.savefig("kernels.png")

Nothing here needs a display. matplotlib is imported when something is drawn, not with this module. In every
picture 0 is the middle tap, rows go down, blue is negative, red positive, white zero.
"""

import math
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure, SubFigure

INK, MUTED, FAINT = "#1b1f24", "#6b7280", "#d4d8de"
MAP = "RdBu_r"
# Okabe and Ito's colours, told apart with every kind of colour vision; a variant has that of its interpolation.
COLORS = {
    "stock": "#6b7280",
    "bilinear": "#e69f00",
    "triangle": "#009e73",
    "gauss": "#0072b2",
    "lorentz": "#cc79a7",
    "hypergauss": "#56b4e9",
    "sinc": "#d55e00",
}


def new_figure(width: float, height: float) -> "Figure":
    """An empty figure of that many inches, with room made for its titles and labels as they come."""
    from matplotlib.figure import Figure  # unlike pyplot it needs no display

    return Figure(figsize=(width, height), dpi=150, layout="constrained")


def draw_kernels(
    where: "Axes | Figure | SubFigure", kernels: Tensor, positions: Tensor | None = None, columns: int | None = None
) -> None:
    """Tile kernels, each on a scale of its own from its largest negative to its largest positive value.

    Args:
        where: axes, or a figure that gets one pair of axes.
        kernels: ``(n, *size)``. 1-D kernels are a row each; the slices of a 3-D kernel stand side by side.
        positions: ``(M, n, m)``, shown as dots; those of elements outside the window are hollow, at its nearest edge.
        columns: kernels in a row; by default about as many as rows.
    """
    kernels = kernels.detach().float().cpu()
    axes_of_kernel = kernels.dim() - 1
    if not 1 <= axes_of_kernel <= 3 or kernels.numel() == 0:
        raise ValueError(f"kernels must be (n, *size) with one to three axes of size, got shape {tuple(kernels.shape)}")
    if positions is not None and (positions.dim() != 3 or positions.shape[:2] != (axes_of_kernel, len(kernels))):
        raise ValueError(
            f"positions must be (M, n, m) with M = {axes_of_kernel} and n = {len(kernels)}, "
            f"got shape {tuple(positions.shape)}"
        )
    axes = cast("Axes", where if hasattr(where, "imshow") else where.subplots())
    count, *size = kernels.shape
    depth, height, width = [1] * (3 - len(size)) + size
    columns = min(count, columns or _columns(count, axes_of_kernel))
    rows = -(-count // columns)
    gap = 1 if height > 1 else 0
    step_down, step_slice, step_right = height + gap, width + 1, depth * (width + 1) + (depth > 1)
    canvas = torch.full((rows * step_down - gap, columns * step_right - 1 - (depth > 1)), math.nan)
    corners = []
    for k, kernel in enumerate(kernels.reshape(count, depth, height, width)):
        top, left = k // columns * step_down, k % columns * step_right
        limit = kernel.abs().max()
        for d in range(depth):
            corner = left + d * step_slice
            canvas[top : top + height, corner : corner + width] = kernel[d] / (limit if limit > 0 else 1)
        corners.append((top, left))
    axes.imshow(canvas.numpy(), cmap=MAP, vmin=-1, vmax=1, interpolation="nearest")
    axes.set(xlim=(-1, canvas.shape[1]), ylim=(canvas.shape[0], -1))  # dots on the edge are seen whole
    if positions is not None:
        taps = torch.tensor([s // 2 for s in (depth, height, width)]).view(3, 1, 1)
        moved = torch.zeros(3, count, positions.shape[-1])
        moved[3 - axes_of_kernel :] = positions.detach().float().cpu()
        d, y, x = moved + taps
        edges = [s.clamp(-0.5, n - 0.5) for s, n in ((d, depth), (y, height), (x, width))]
        inside = torch.stack([near == s for near, s in zip(edges, (d, y, x), strict=True)]).all(0)
        d, y, x = edges
        top, left = torch.tensor(corners, dtype=torch.float32).T.unsqueeze(-1)
        x, y = x + left + d.round().clamp(0, depth - 1) * step_slice, y + top
        _dots(axes, x[inside], y[inside], size=3)
        _dots(axes, x[~inside], y[~inside], size=3, hollow=True)
    _bare(axes)


def _columns(count: int, axes_of_kernel: int) -> int:
    return math.ceil(math.sqrt(count)) if axes_of_kernel == 2 else 1


def _dots(axes: "Axes", x: Tensor, y: Tensor, size: float, hollow: bool = False) -> None:
    fill, edge = ("none", INK) if hollow else (INK, "white")
    axes.plot(x, y, "o", ms=size, mfc=fill, mec=edge, mew=size / 6)


def _bare(axes: "Axes") -> None:
    axes.set(xticks=(), yticks=())
    axes.spines[:].set_visible(False)

"""Many windows of taps on one pair of axes."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor

from .style import FAINT, WINDOW

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(frozen=True)
class Tiles:
    """``count`` windows in rows of ``columns``. A window of one or two axes has depth, and height, 1.

    Taps are one unit apart; the slices of a 3-D window stand side by side.
    """

    count: int
    size: tuple[int, int, int]
    columns: int
    axes_of_size: int

    @classmethod
    def of(cls, size: Sequence[int], count: int, columns: int | None) -> "Tiles":
        """Windows of ``size``, in as many columns as rows if nothing else is asked for."""
        if columns is None:
            columns = math.ceil(math.sqrt(count)) if len(size) == 2 else 1
        whole = cast("tuple[int, int, int]", (*[1] * (3 - len(size)), *size))
        return cls(count, whole, max(1, min(count, columns)), len(size))

    @property
    def step(self) -> tuple[int, int]:
        """From one window to the next below and to the right: a gap of one tap, two around slices, none in 1-D."""
        depth, height, width = self.size
        return height + (height > 1), depth * (width + 1) + (depth > 1)

    @property
    def shape(self) -> tuple[int, int]:
        """Height and width of it all, without the last gap."""
        (down, right), (depth, height, _) = self.step, self.size
        rows = -(-self.count // self.columns)
        return rows * down - (height > 1), self.columns * right - 1 - (depth > 1)

    @property
    def corners(self) -> Tensor:
        """``(count, 2)``: top and left of each window."""
        index = torch.arange(self.count)
        return torch.stack([index // self.columns, index % self.columns], dim=1) * torch.tensor(self.step)

    def place(self, position: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Where positions ``(M, count, m)`` lie: x, y, and whether inside their window; if not, at its edge."""
        axes, size = self.axes_of_size, torch.tensor(self.size).view(3, 1, 1)
        if position.dim() != 3 or position.shape[:2] != (axes, self.count):
            raise ValueError(
                f"positions must be (M, n, m) with M = {axes} and n = {self.count}, got shape {tuple(position.shape)}"
            )
        tap = torch.zeros(3, *position.shape[1:])
        tap[3 - axes :] = position.detach().float().cpu()
        tap += size // 2
        edge = torch.minimum(tap.clamp_min(-0.5), size - 0.5)
        inside = (edge == tap).all(0)
        depth, y, x = edge
        top, left = self.corners.T.unsqueeze(-1)
        slices = depth.round().clamp(0, self.size[0] - 1)
        return x + left + slices * (self.size[2] + 1), y + top, inside

    def draw_windows(self, axes: "Axes") -> None:
        """Paint the windows, empty, with their middle marked."""
        from matplotlib.collections import PatchCollection
        from matplotlib.patches import Rectangle

        depth, height, width = self.size
        boxes, middles = [], []
        for top, left in self.corners.tolist():
            for d in range(depth):
                corner = left + d * (width + 1)
                boxes.append(Rectangle((corner - 0.5, top - 0.5), width, height))
                middles.append((corner + width // 2, top + height // 2))
        axes.add_collection(PatchCollection(boxes, facecolor=WINDOW, edgecolor=FAINT, linewidth=0.6))
        axes.plot(*zip(*middles, strict=True), "+", color=FAINT, markersize=4, markeredgewidth=0.8)
        axes.set_aspect("equal")
        self.frame(axes)

    def frame(self, axes: "Axes") -> None:
        """Leave no axes, and room for dots on the edge to be seen whole."""
        height, width = self.shape
        axes.set(xlim=(-1, width), ylim=(height, -1), xticks=(), yticks=())
        axes.spines[:].set_visible(False)

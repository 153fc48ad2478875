"""Pictures of positions and widths on their way through training."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from .style import COLORS, INK, new_figure, quiet
from .tiles import Tiles

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def draw_trajectories(axes: "Axes", history: Tensor, size: Sequence[int], columns: int | None = None) -> None:
    """The ways of elements through training, from pale to dark, in a window each kernel; they end in a dot.

    Args:
        axes: where to draw.
        history: ``(E, M, n, m)``. One axis is drawn across with time going down; of three the last two are seen.
        size: the window, ``(s_1, ..., s_M)``.
        columns: kernels in a row; by default as many as rows.
    """
    from matplotlib.collections import LineCollection
    from matplotlib.colors import LinearSegmentedColormap

    history, size = history.detach().float().cpu()[:, -2:], tuple(size)[-2:]
    if history.shape[1] == 1:
        size = (max(2, size[0] // 2), size[0])
        down = torch.linspace(-(size[0] // 2), (size[0] - 1) // 2, len(history))
        history = torch.cat([down.view(-1, 1, 1, 1).expand_as(history), history], dim=1)
    tiles = Tiles.of(size, history.shape[2], columns)
    tiles.draw_windows(axes)
    places = torch.stack([torch.stack(tiles.place(position)[:2], dim=-1) for position in history])  # (E, n, m, 2)
    steps = torch.stack([places[:-1], places[1:]], dim=-2).flatten(0, 2)
    time = torch.arange(len(history) - 1).repeat_interleave(places[0, ..., 0].numel())
    ramp = LinearSegmentedColormap.from_list("time", ["#c6dcec", COLORS["gauss"], "#00304d"])
    axes.add_collection(
        LineCollection(list(steps.numpy()), array=time.numpy(), cmap=ramp, linewidths=1.0, capstyle="round")
    )
    axes.plot(*places[-1].flatten(0, 1).T, "o", ms=3, mfc=INK, mec="white", mew=0.5)


def animate_positions(
    path: str | Path, history: Tensor, size: Sequence[int], epochs: Sequence[int], columns: int | None = None
) -> None:
    """Write a GIF of elements moving through training, a window each kernel.

    Args:
        path: the file to write.
        history: ``(E, M, n, m)``.
        size: the window, ``(s_1, ..., s_M)``.
        epochs: ``(E,)``, for the title. At most 60 are shown; fewer are joined by straight lines.
        columns: kernels in a row; by default as many as rows.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from PIL import Image

    history = history.detach().float().cpu()
    tiles = Tiles.of(size, history.shape[2], columns)
    height, width = tiles.shape
    figure = new_figure(6, 0.35 + 6 * height / width)
    figure.set_dpi(100)
    axes = figure.subplots()
    tiles.draw_windows(axes)
    title = axes.set_title("epoch", loc="left", fontsize=10, color=INK)
    (trail,) = axes.plot([], [], "o", ms=1.5, mfc=COLORS["gauss"], mec="none", alpha=0.5)
    (dots,) = axes.plot([], [], "o", ms=4, mfc=INK, mec="white", mew=0.6)
    for artist in (title, trail, dots):
        artist.set_animated(True)  # drawn anew for each frame, on top of what is drawn once
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    still = canvas.copy_from_bbox(figure.bbox)

    frames, seen = [], list[Tensor]()
    for time in torch.linspace(0, len(history) - 1, min(60, max(2, 6 * (len(history) - 1) + 1))).tolist():
        before = int(time)
        position = torch.lerp(history[before], history[min(before + 1, len(history) - 1)], time - before)
        x, y, _ = tiles.place(position)
        seen = [*seen[-12:], torch.stack([x, y]).flatten(1)]
        trail.set_data(*torch.cat(seen, dim=1).numpy())
        dots.set_data(x.flatten().numpy(), y.flatten().numpy())
        title.set_text(f"epoch {epochs[before]}")
        canvas.restore_region(still)
        for artist in (title, trail, dots):
            axes.draw_artist(artist)
        frames.append(Image.frombuffer("RGBA", canvas.get_width_height(), canvas.buffer_rgba()).convert("RGB"))
    palette = frames[-1].quantize(32)  # the last frame has all colours
    frames = [frame.quantize(palette=palette, dither=Image.Dither.NONE) for frame in frames]
    durations = [80] * (len(frames) - 1) + [1500]  # rest at the end before it starts again
    frames[0].save(path, save_all=True, append_images=frames[1:], duration=durations, loop=0)


def draw_spread(axes: "Axes", epochs: Sequence[float], history: Mapping[str, Tensor]) -> None:
    """Over epochs, the median of each ``(E, ...)`` history and the band of its middle 80%: widths, distances."""
    from matplotlib import colormaps

    for i, (name, values) in enumerate(history.items()):
        color = colormaps["viridis"](i / max(1, len(history) - 0.5))
        low, middle, high = values.flatten(1).double().quantile(torch.tensor([0.1, 0.5, 0.9]).double(), dim=1)
        axes.fill_between(epochs, low, high, color=color, alpha=0.15, linewidth=0)
        axes.plot(epochs, middle, color=color, linewidth=1.6, label=name)
    axes.set_xlabel("epoch")
    axes.locator_params(axis="x", integer=True)
    axes.legend(frameon=False, fontsize=8)
    quiet(axes)

"""Find the hidden taps: can gradient descent move the elements of a kernel to where they belong?

Each problem hides a convolution of 4 taps in a 21x21 window. A ``Dcls2d`` layer of 6 elements, two to
spare, sees random input and what the hidden convolution makes of it, and learns weights, positions and
widths. Its elements start with weight 0, all at the same distance from the nearest hidden tap. A tap is
found if an element ends within half a tap of it; no element counts for two taps.

    python examples/hidden_taps.py            # prints the table, draws hidden_taps.png

On white noise an element learns only from the taps that its interpolation reaches. Bilinear and sinc have
no width: they find what lies beside them and little else. The others learn theirs, and run twice: from the
narrow width that the library starts with, and from a wide one, chosen for this task, that reaches far at
first and shrinks as a tap comes near. Much of the success is that start, so the table shows both. Smooth
input, such as images, carries far by itself, with every interpolation: try ``--smooth 5``.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch
import torch.nn.functional as F
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from torchdcls import Dcls2d, Interpolation, convolve
from torchdcls.interpolation import INTERPOLATIONS

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SIZE, TAPS, ELEMENTS, INPUT = 21, 4, 6, 36
DISTANCES, PROBLEMS = (1, 2, 3, 4, 5, 6), 25  # problems for each distance
WIDE = {"triangle": 6.0, "gauss": 2.55, "lorentz": 3.0, "hypergauss": 2.32}  # half their height at 3 taps
COLORS, MARKERS = ("#000000", "#E69F00", "#0072B2", "#009E73", "#CC79A7", "#56B4E9"), "s^oDvx"


class Problems(NamedTuple):
    """One problem an output channel: first ``PROBLEMS`` of the first distance, and so on."""

    taps: Tensor  # (channels, TAPS, 2), 0 is the middle of the window
    start: Tensor  # (channels, ELEMENTS, 2)
    kernel: Tensor  # (channels, 1, SIZE, SIZE)


class Result(NamedTuple):
    """What one interpolation, started at one width, made of the problems."""

    interpolation: Interpolation
    width: float | None
    path: Tensor  # (steps + 1, channels, ELEMENTS, 2)
    kernel: Tensor  # (channels, 1, SIZE, SIZE)
    found: list[float]  # for each distance the taps found, in %


def draw_problem(distance: float) -> tuple[Tensor, Tensor]:
    """Taps at least 3 apart, and elements whose nearest tap is ``distance`` away, all inside the window."""
    while True:
        taps = torch.randint(3 - SIZE // 2, SIZE // 2 - 2, (TAPS, 2)).float()
        angle = 2 * math.pi * torch.rand(ELEMENTS, 64)
        own = taps[torch.arange(ELEMENTS) % TAPS, None]
        places = own + distance * torch.stack((angle.sin(), angle.cos()), dim=-1)
        allowed = (torch.cdist(places, taps).amin(-1) > distance - 1e-3) & (places.abs().amax(-1) <= SIZE // 2)
        if allowed.any(1).all() and F.pdist(taps).min() >= 3:
            return taps, places[torch.arange(ELEMENTS), allowed.int().argmax(1)]


def draw_problems() -> Problems:
    drawn = [draw_problem(distance) for distance in DISTANCES for _ in range(PROBLEMS)]
    taps, start = (torch.stack(part) for part in zip(*drawn, strict=True))
    kernel = torch.zeros(len(taps), 1, SIZE, SIZE)
    row, column = (taps + SIZE // 2).long().unbind(-1)
    sign = 2 * torch.randint(0, 2, row.shape) - 1
    kernel[torch.arange(len(taps))[:, None], 0, row, column] = sign * torch.empty(row.shape).uniform_(0.5, 1.5)
    return Problems(taps, start, kernel)


@torch.no_grad()
def make_layer(problems: Problems, interpolation: Interpolation, width: float | None) -> Dcls2d:
    layer = Dcls2d(1, len(problems.taps), ELEMENTS, SIZE, bias=False, interpolation=interpolation)
    layer.weight.zero_()  # so that no element moves before it has found its sign
    layer.position.copy_(problems.start.movedim(-1, 0).unsqueeze(2))
    if layer.sigma is not None and width is not None and interpolation.minimum_width is not None:
        layer.sigma.fill_(width - interpolation.minimum_width)
    return layer


def random_input(smooth: int) -> Tensor:
    """White noise averaged over boxes of ``smooth`` x ``smooth`` and scaled back to variance 1."""
    noise = torch.randn(1, 1, INPUT + smooth - 1, INPUT + smooth - 1)
    return F.avg_pool2d(noise, smooth, stride=1) * smooth


def learn(layer: Dcls2d, target: Tensor, steps: int, smooth: int) -> Tensor:
    """Train ``layer`` to do what the kernel ``target`` does; the positions on the way."""
    moving = [layer.position] if layer.sigma is None else [layer.position, layer.sigma]
    optimizer = torch.optim.Adam(
        [{"params": [layer.weight], "lr": 0.03}, {"params": moving, "lr": 0.1}], betas=(0.9, 0.99)
    )
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    path = [layer.position.detach().clone()]
    for _ in range(steps):
        noise = random_input(smooth)
        error = layer(noise) - convolve(noise, target)
        optimizer.zero_grad()
        error.square().mean((0, 2, 3)).sum().backward()  # a sum over channels: no problem touches another
        optimizer.step()
        schedule.step()
        layer.clamp_positions_()
        path.append(layer.position.detach().clone())
    return torch.stack(path).squeeze(3).movedim(1, -1)


def count_found(taps: Tensor, elements: Tensor) -> int:
    """How many taps have an element of their own within half a tap."""
    close = (torch.cdist(taps, elements) <= 0.5).numpy()
    return int(close[linear_sum_assignment(close, maximize=True)].sum())


def run(interpolation: Interpolation, width: float | None, problems: Problems, steps: int, smooth: int) -> Result:
    layer = make_layer(problems, interpolation, width)
    path = learn(layer, problems.kernel, steps, smooth)
    counts = [count_found(taps, elements) for taps, elements in zip(problems.taps, path[-1], strict=True)]
    by_distance = torch.tensor(counts).view(len(DISTANCES), PROBLEMS).float()
    found = (100 / TAPS * by_distance.mean(1)).tolist()
    return Result(interpolation, width, path, layer.dense_kernel().detach(), found)


def starting_widths(interpolation: Interpolation) -> list[float | None]:
    if interpolation.minimum_width is None or interpolation.initial_sigma is None:
        return [None]
    return [interpolation.minimum_width + interpolation.initial_sigma, WIDE[interpolation.name]]


def draw_shares(axes: Axes, results: Sequence[Result]) -> None:
    for result in results:
        index, name = INTERPOLATIONS.index(result.interpolation), result.interpolation.name
        if result.width == WIDE.get(name):
            style, label = f"{MARKERS[index]}-", name
        else:
            style, label = ":", "_"  # kept out of the legend
        axes.plot(DISTANCES, result.found, style, color=COLORS[index], linewidth=2, label=label)
    axes.plot([], [], ":", color="0.4", linewidth=2, label="narrow start")
    axes.set(xlabel="taps from each element to the nearest hidden tap, at the start", ylim=(-3, 103))
    axes.set(ylabel="hidden taps found (%)", xticks=DISTANCES, title="How far can the elements come from?")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(loc="upper left", bbox_to_anchor=(1, 1), frameon=False)


def draw_kernel(axes: Axes, result: Result, problems: Problems, channel: int) -> None:
    half, limit = SIZE / 2, float(problems.kernel[channel].abs().max())
    kernel, taps = result.kernel[channel, 0].numpy(), problems.taps[channel].numpy()
    axes.imshow(kernel, cmap="RdBu_r", vmin=-limit, vmax=limit, extent=(-half, half, half, -half))
    for row, column in result.path[:, channel].permute(1, 2, 0).numpy():
        axes.plot(column, row, color="0.4", linewidth=0.9)
        axes.plot(column[0], row[0], "x", color="0.4", markersize=6)
        axes.plot(column[-1], row[-1], "o", color="black", markersize=4)
    axes.plot(taps[:, 1], taps[:, 0], "o", color="black", markersize=18, fillstyle="none")
    axes.set(xlim=(-half, half), ylim=(half, -half), xticks=(), yticks=())
    axes.set(title=f"A kernel learned with {result.interpolation.name}")
    axes.set_xlabel("hidden taps circled; elements, two to spare, from × to ●")


def draw(results: Sequence[Result], problems: Problems, output: str) -> None:
    """The shares, beside the first problem at 4 taps as gauss from its wide start leaves it."""
    from matplotlib.figure import Figure  # unlike pyplot it needs no display

    figure = Figure(figsize=(12, 5), dpi=110, layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(1.3, 1))
    draw_shares(left, results)
    shown = next(result for result in results if result.width == WIDE["gauss"])
    draw_kernel(right, shown, problems, channel=DISTANCES.index(4) * PROBLEMS)
    figure.savefig(output)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=500, help="training steps (default: 500)")
    parser.add_argument("--smooth", type=int, default=1, help="side of the box that averages the white noise")
    parser.add_argument("--output", default="hidden_taps.png", help="where to save the figure")
    options = parser.parse_args(arguments)
    began = time.perf_counter()
    torch.set_num_threads(1)  # with tensors this small a second thread mostly waits
    torch.manual_seed(options.seed)
    problems = draw_problems()
    print(f"Hidden taps found, in % of {PROBLEMS * TAPS}, from each starting distance in taps")
    print(f"{'interpolation':<13}{'start width':>13}" + "".join(f"{distance:7}" for distance in DISTANCES))
    results = []
    for interpolation in INTERPOLATIONS:
        for width in starting_widths(interpolation):
            torch.manual_seed(options.seed)  # the same input for all
            results.append(run(interpolation, width, problems, options.steps, options.smooth))
            cells = "".join(f"{share:7.0f}" for share in results[-1].found)
            print(f"{interpolation.name:<13}{'-' if width is None else f'{width:.2f}':>13}{cells}", flush=True)
    draw(results, problems, options.output)
    print(f"{time.perf_counter() - began:.0f} s, figure in {options.output}")


if __name__ == "__main__":
    main()

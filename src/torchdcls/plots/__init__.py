"""Pictures of kernels, positions and results, drawn on figures and axes that the caller makes.

    from torchdcls import plots
    figure = plots.new_figure(6, 3)
    plots.draw_kernels(figure, layer.dense_kernel().flatten(0, 1))
    figure.savefig("kernels.png")

Nothing here needs a display. matplotlib is imported when something is drawn, not with this module. In every
picture of a kernel 0 is the middle tap, rows go down, blue is negative and red positive.
"""

from .kernels import draw_kernels, draw_model, draw_numbers, draw_profiles
from .positions import animate_positions, draw_spread, draw_trajectories
from .results import draw_bars, draw_curves
from .style import COLORS, INK, colors_of, new_figure

__all__ = [
    "COLORS",
    "INK",
    "animate_positions",
    "colors_of",
    "draw_bars",
    "draw_curves",
    "draw_kernels",
    "draw_model",
    "draw_numbers",
    "draw_profiles",
    "draw_spread",
    "draw_trajectories",
    "new_figure",
]

"""Colours and figures that all pictures have in common."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK, MUTED, FAINT, WINDOW = "#1b1f24", "#6b7280", "#d4d8de", "#f4f5f7"
MAP = "RdBu_r"
# Okabe and Ito's colours, told apart with every kind of colour vision.
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


def colors_of(names: Iterable[str]) -> dict[str, str]:
    """A colour for each variant: that of the interpolation it is named after, lighter for each further one.

    >>> colors_of(["stock", "gauss", "gauss_17_26"])
    {'stock': '#6b7280', 'gauss': '#0072b2', 'gauss_17_26': '#66aad1'}
    """
    used: dict[str, int] = {}
    colors = {}
    for name in dict.fromkeys(names):
        base = next((known for known in COLORS if name.split("_")[0] == known), "sinc")
        shade = 0.6 ** used.setdefault(base, 0)
        used[base] += 1
        channels = (int(COLORS[base][i : i + 2], 16) for i in (1, 3, 5))
        colors[name] = "#" + "".join(f"{round(255 - shade * (255 - channel)):02x}" for channel in channels)
    return colors


def quiet(axes: "Axes") -> None:
    """Leave out what says nothing, the lines above and to the right, and write what is left small."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(MUTED)
    axes.tick_params(color=MUTED, labelsize=8, labelcolor=INK)
    for label in (axes.xaxis.label, axes.yaxis.label):
        label.set(size=9, color=INK)

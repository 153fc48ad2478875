"""Draw `delays.png`: the delays of spiking synapses on their way to where they belong.

    python docs/figures/draw_delays.py

Runs the code of `docs/delays.md` itself, up to the end of the training, and looks at it after each epoch.
"""

import re
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure  # unlike pyplot it needs no display

HERE = Path(__file__).parent
WATCH = "    optimizer.step()\n"


def main() -> None:
    """Train as on the page, then draw."""
    page = (HERE.parent / "delays.md").read_text()
    make, train = re.findall(r"^```python\n(.*?)^```", page, flags=re.MULTILINE | re.DOTALL)[:2]
    path: list[list[float]] = []
    widths: list[float] = []

    def watch(synapses: Any, window: int) -> None:
        path.append(((window - 1) // 2 - synapses.position.detach().flatten()).tolist())
        widths.append(0.27 + float(synapses.sigma.detach().mean()))

    names: dict[str, Any] = {"watch": watch}
    exec(make + train.replace(WATCH, WATCH + "    watch(synapses, window)\n"), names)
    figure = Figure(figsize=(8, 3.6), dpi=110, layout="constrained")
    axes = figure.subplots()
    epochs = range(len(path))
    for index, (delays, hidden) in enumerate(zip(zip(*path, strict=True), names["hidden"].tolist(), strict=True)):
        color = f"C{index}"
        axes.axhline(hidden, color=color, ls="--", lw=0.8)
        axes.plot(epochs, delays, color=color, lw=1.6)
        low, high = zip(*((d - w, d + w) for d, w in zip(delays, widths, strict=True)), strict=True)
        axes.fill_between(epochs, low, high, color=color, alpha=0.04, lw=0)
    axes.set(xlabel="epoch", ylabel="delay in steps", ylim=(-1, names["window"]), xlim=(0, len(path) - 1))
    axes.grid(alpha=0.3)
    figure.savefig(HERE / "delays.png")


if __name__ == "__main__":
    main()

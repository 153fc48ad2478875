"""Draw `cost.png`, what a larger window costs in a whole network, from the benchmark's results.

python docs/figures/draw_cost.py
"""

import csv
from pathlib import Path

from matplotlib.figure import Figure  # unlike pyplot it needs no display

HERE = Path(__file__).parent
RESULTS = HERE.parent.parent / "benchmarks" / "results" / "model_size.csv"


def main() -> None:
    """Read the table and draw it."""
    with RESULTS.open() as file:
        rows = list(csv.DictReader(file))
    stock, ours = rows[0], [row for row in rows if row["contender"].startswith("torchdcls")]
    sizes = [int(row["contender"].split("x")[-1]) for row in ours]
    figure = Figure(figsize=(8.5, 3), dpi=110, layout="constrained")
    for axes, column, name, color in zip(
        figure.subplots(1, 2),
        ("milliseconds", "megabytes"),
        ("time of a training step", "peak memory of a training step"),
        ("#0072B2", "#009E73"),
        strict=True,
    ):
        reference = float(stock[column])
        axes.plot(sizes, [float(row[column]) / reference for row in ours], "o-", color=color, label="torchdcls")
        axes.axhline(1, color="#777777", ls=":", label="stock network, 7x7")
        axes.set(xlabel="side of the window", title=name, xticks=sizes, ylim=(0, 2))
        axes.grid(alpha=0.3)
        axes.legend(frameon=False, loc="lower right")
    figure.axes[0].set_ylabel("times the stock network")
    figure.savefig(HERE / "cost.png")


if __name__ == "__main__":
    main()

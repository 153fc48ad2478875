"""Draw `convolution_size.png`, the time of a convolution against its size, from the benchmark's results."""

import csv
from collections import defaultdict
from pathlib import Path

HERE = Path(__file__).parent
RESULTS = HERE.parent.parent / "benchmarks" / "results" / "convolution_size.csv"
STYLES = {
    "torch": ("#d55e00", "o-"),
    "direct": ("#0072b2", "s-"),
    "mixed": ("#cc79a7", "v-"),
    "spectral": ("#009e73", "D-"),
    "auto": ("#000000", "--"),
}


def main() -> None:
    """Read the table and draw it."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    curves: dict[str, list[tuple[int, float]]] = defaultdict(list)
    with RESULTS.open() as file:
        for row in csv.DictReader(file):
            curves[row["contender"]].append((int(row["problem"].split("x")[0]), float(row["milliseconds"])))
    figure, axes = plt.subplots(figsize=(7, 4.2), layout="constrained")
    for name, (color, style) in STYLES.items():
        sizes, times = zip(*curves[name], strict=True)
        axes.plot(sizes, times, style, color=color, label=name, markersize=5, linewidth=1.6)
    axes.set(yscale="log", xlabel="side of the kernel", ylabel="milliseconds, forward and backward")
    axes.set_xticks([3, 7, 11, 15, 19, 23, 31, 41, 51])
    axes.grid(alpha=0.3, which="both")
    axes.set_title("Depthwise convolution on (8, 96, 56, 56), two CPU cores")
    axes.legend(frameon=False, ncols=5, loc="upper left", columnspacing=1.2)
    figure.savefig(HERE / "convolution_size.png", dpi=150)


if __name__ == "__main__":
    main()

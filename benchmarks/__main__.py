"""`python -m benchmarks [case ...]`: measure, print a table, write `benchmarks/results/<case>.csv`."""

import argparse
from pathlib import Path

import torch

from . import convolution, dense_kernel, layers, limits, models, official  # noqa: F401  (each registers its cases)
from .harness import CASES, hardware, measure, table, write_csv


def main() -> None:
    """Run the cases named on the command line, or all."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("cases", nargs="*", help=f"which to run, of {', '.join(CASES)}; all by default")
    parser.add_argument("--device", default="cpu", type=torch.device)
    parser.add_argument("--output", default=Path(__file__).parent / "results", type=Path)
    parser.add_argument("--quick", action="store_true", help="run each thing once, to see that it works; write nothing")
    arguments = parser.parse_args()
    unknown = set(arguments.cases) - set(CASES)
    if unknown:
        parser.error(f"unknown case {', '.join(sorted(unknown))}; choose from {', '.join(CASES)}")
    print(f"{hardware(arguments.device)}, torch {torch.__version__}")
    for name in arguments.cases or CASES:
        rows = [
            row
            for comparison in CASES[name](arguments.device)
            for row in measure(name, comparison, arguments.device, arguments.quick)
        ]
        print(f"\n{name}\n{table(rows)}", flush=True)
        if not arguments.quick:
            write_csv(rows, arguments.output / f"{name}.csv", arguments.device)


if __name__ == "__main__":
    main()

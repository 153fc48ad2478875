"""`python -m tests.mutation`: how many of the faults that can be put into a module do its tests find?"""

import argparse
import csv
import random
import sys
from pathlib import Path

from tests.mutation import runner
from tests.mutation.mutants import Mutant, mutants

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results"
EQUIVALENT = Path(__file__).parent / "equivalent.csv"
TARGET = 0.9

# module -> the tests that are meant to find its faults, without the slow ones; quickest first, as one failure ends it
_QUICK = ["-k", "not compiles and not inductor and not timm and not transformers and not processes and not learns_from"]
TESTS = {
    "interpolation": ["tests/test_interpolation.py", "tests/test_errors.py", "tests/test_kernel.py", *_QUICK],
    "kernel": ["tests/test_errors.py", "tests/test_kernel.py", *_QUICK],
    "convolution/spectral": ["tests/test_spectral.py"],
    "surgery": ["tests/test_surgery.py", *_QUICK],
    "sharing": ["tests/test_sharing.py", *_QUICK],
    "parameter_groups": ["tests/test_parameter_groups.py", *_QUICK],
    "layers": ["tests/test_errors.py", "tests/test_layers.py", *_QUICK],
}


def equivalents() -> dict[str, dict[tuple[str, str], str]]:
    """Module -> (code, change) -> why no test can find it."""
    found: dict[str, dict[tuple[str, str], str]] = {module: {} for module in TESTS}
    with EQUIVALENT.open() as file:
        for row in csv.DictReader(file):
            found[row["module"]][row["code"], row["change"]] = row["reason"]
    return found


def source(module: str) -> Path:
    """Where a module is."""
    return ROOT / "src" / runner.PACKAGE / f"{module}.py"


def run_module(module: str, sample: int | None, seed: int, known: dict[tuple[str, str], str]) -> list[list[str]]:
    """A row for each mutant that was tried."""
    found = mutants(source(module).read_text())
    chosen = found if sample is None else sorted(random.Random(seed).sample(found, min(sample, len(found))), key=_line)
    result, usual = runner.run(None, TESTS[module], 600)
    if result != "survived":
        raise SystemExit(f"tests of {module} fail without any fault: {' '.join(TESTS[module])}")
    print(f"{module}: {len(chosen)} of {len(found)} mutants; all tests take {usual:.1f} s", flush=True)
    name = f"{runner.PACKAGE}.{module.replace('/', '.')}"
    rows = []
    for mutant in chosen:
        if mutant.name in known:
            result, taken = "equivalent", 0.0
        else:
            code = compile(mutant.tree, str(source(module)), "exec")
            fault = runner.Fault(name, str(source(module)), code)
            result, taken = runner.run(fault, TESTS[module], 30 + 3 * usual)
        rows.append([module, str(mutant.line), mutant.code, mutant.change, result])
        if result == "survived":
            print(f"  survived, {taken:.1f} s, line {mutant.line}: {mutant.code}\n      {mutant.change}", flush=True)
    return rows


def _line(mutant: Mutant) -> int:
    return mutant.line


def summary(rows: list[list[str]]) -> list[list[str]]:
    """A row for each module: how many were tried, found, missed, equivalent; the share found of those that can be."""
    table = []
    for module in dict.fromkeys(row[0] for row in rows):
        results = [row[-1] for row in rows if row[0] == module]
        killed = results.count("killed") + results.count("timeout")
        possible = len(results) - results.count("equivalent")
        missed, same = str(results.count("survived")), str(results.count("equivalent"))
        table.append([module, str(len(results)), str(killed), missed, same, f"{killed / max(1, possible):.1%}"])
    return table


def main() -> int:
    """1 where a module is below the target."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutation", description=__doc__)
    parser.add_argument("modules", nargs="*", help=f"which, of {', '.join(TESTS)}; all by default")
    parser.add_argument("--sample", type=int, help="only so many mutants of each module, drawn evenly")
    parser.add_argument("--seed", type=int, default=0, help="of the sample")
    parser.add_argument("--write", action="store_true", help=f"write the results to {RESULTS.relative_to(ROOT)}")
    arguments = parser.parse_args()
    unknown = set(arguments.modules) - set(TESTS)
    if unknown:
        parser.error(f"unknown module {', '.join(sorted(unknown))}; choose from {', '.join(TESTS)}")
    runner.prepare()
    known = equivalents()
    rows = [
        row
        for module in arguments.modules or TESTS
        for row in run_module(module, arguments.sample, arguments.seed, known[module])
    ]
    table = summary(rows)
    for line in table:
        print("{:22}{} tried, {} found, {} missed, {} equivalent: {}".format(*line))
    if arguments.write:
        _write("mutants.csv", ["module", "line", "code", "change", "result"], rows)
        _write("mutation.csv", ["module", "tried", "found", "missed", "equivalent", "share found"], table)
    return int(any(float(line[-1].rstrip("%")) < 100 * TARGET for line in table))


def _write(name: str, header: list[str], rows: list[list[str]]) -> None:
    with (RESULTS / name).open("w", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows([header, *rows])


if __name__ == "__main__":
    sys.exit(main())

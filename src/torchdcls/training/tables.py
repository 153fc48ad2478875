"""The results of a comparison as tables: for the terminal, for a page, for other programs."""

import csv
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from .results import MEASURES, Row, Run, by_recipe, find_differences, make_table
from .statistics import Difference

HEADER = ("model", "size² / count", "interpolation", "parameters", "runs", "training loss", "top-5 (%)", "top-1 (%)")
TESTS_HEADER = ("measure", "first", "second", "difference", "t", "p", "p (Holm)")
SHARED = ("model", "interpolation", "size", "count", "parameters")  # what the runs of a variant have in common
MEASURED = ("epochs", "train_loss", "val_loss", "val_top1", "val_top5", "seconds")


def cells(row: Row) -> tuple[str, ...]:
    """The cells of one line under :data:`HEADER`, the paper's columns."""
    values = [
        "-" if (summary := row.summaries[measure]) is None else summary.format(digits)
        for measure, (_, digits) in MEASURES.items()
    ]
    model, parameters = row.entries["model"], f"{row.entries['parameters']:,}"
    return (model, row.size_and_count, row.interpolation, parameters, str(len(row.runs)), *values)


def as_text(rows: Sequence[Row]) -> str:
    """The table for a terminal."""
    return _aligned([HEADER, *map(cells, rows)])


def as_markdown(rows: Sequence[Row]) -> str:
    """The table for a page."""
    lines = ["| " + " | ".join(line) + " |" for line in (HEADER, *map(cells, rows))]
    lines.insert(1, "|---|---|---|" + "---:|" * (len(HEADER) - 3))
    return "\n".join(lines) + "\n"


def tests_as_text(differences: Mapping[str, Sequence[Difference]]) -> str:
    """The tests for a terminal, or nothing where there are none."""
    lines: list[tuple[str, ...]] = [TESTS_HEADER]
    lines += [test_cells(measure, test) for measure, tests in differences.items() for test in tests]
    return _aligned(lines) if len(lines) > 1 else ""


def test_cells(measure: str, test: Difference) -> tuple[str, ...]:
    """A test in words: measure, the two variants, their difference, t, p, p corrected."""
    name, digits = MEASURES[measure]
    # adding 0.0 makes of -0.0, which rounding gives, 0.0
    difference, t = round(test.difference, digits) + 0.0, round(test.t, 2) + 0.0
    numbers = (f"{difference:+.{digits}f}", f"{t:.2f}", p_in_words(test.p), p_in_words(test.p_holm))
    return (name, test.first, test.second, *numbers)


def p_in_words(p: float) -> str:
    """A p-value with three digits.

    >>> p_in_words(0.04567), p_in_words(0.00012)
    ('0.046', '< 0.001')
    """
    return "< 0.001" if p < 0.001 else f"{p:.3f}"


def write_tables(folder: Path, runs: Sequence[Run]) -> None:
    """Write ``results.csv``, a line for each run, ``table.csv`` and ``table.md``, and ``tests.csv``."""
    rows = make_table(runs)
    (folder / "table.md").write_text(as_markdown(rows))
    _write_csv(
        folder / "results.csv",
        ("recipe", "variant", "seed", *SHARED, *MEASURED, "folder"),
        (
            {**run.summary, "recipe": run.recipe, "variant": run.variant, "seed": run.seed}
            | {"folder": run.folder.relative_to(folder).as_posix()}
            for run in runs
        ),
    )
    moments = [f"{measure}_{moment}" for measure in MEASURES for moment in ("mean", "error")]
    _write_csv(folder / "table.csv", ("recipe", "variant", *SHARED, "runs", *moments), map(_table_line, rows))
    _write_csv(
        folder / "tests.csv",
        ("recipe", "measure", "first", "second", "difference", "t", "p", "p_holm"),
        (
            {"recipe": recipe, "measure": measure, **vars(test)}
            for recipe, members in by_recipe(runs).items()
            for measure, tests in find_differences(members).items()
            for test in tests
        ),
    )


def _table_line(row: Row) -> dict[str, Any]:
    line = {**row.entries, "recipe": row.runs[0].recipe, "variant": row.runs[0].variant, "runs": len(row.runs)}
    for measure, summary in row.summaries.items():
        if summary is not None:
            line |= {f"{measure}_mean": summary.mean, f"{measure}_error": summary.error}
    return line


def _write_csv(path: Path, header: Sequence[str], lines: Iterable[Mapping[str, Any]]) -> None:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, header, extrasaction="ignore", lineterminator="\n")
        writer.writeheader()
        writer.writerows(lines)


def _aligned(lines: Sequence[Sequence[str]]) -> str:
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join("  ".join(map(str.ljust, line, widths)).rstrip() for line in lines)

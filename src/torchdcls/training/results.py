"""What finished runs left in their folders, and what they amount to together."""

import csv
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .recipe import Recipe, load_recipe, same_run
from .statistics import Difference, Summary, pairwise_tests, summarize

# What is compared: the entry of a summary, its name in tables, and the digits that mean something.
MEASURES = {"train_loss": ("training loss", 3), "val_top5": ("top-5", 2), "val_top1": ("top-1", 2)}
TESTED = ("train_loss", "val_top1")
RECORD = "comparison.json"
RECIPE, SUMMARY, CHECKPOINTS = "recipe.yaml", "summary.json", "checkpoints"  # in the folder of a run


@dataclass(frozen=True)
class Run:
    """A finished run.

    Attributes:
        recipe, variant, seed: what was run.
        folder: what it left.
        summary: the entries of its ``summary.json``.
    """

    recipe: str
    variant: str
    seed: int
    folder: Path
    summary: Mapping[str, Any]

    @cached_property
    def metrics(self) -> dict[str, list[float]]:
        """The columns of ``metrics.csv``; what was left empty is ``nan``."""
        with (self.folder / "metrics.csv").open(newline="") as file:
            rows = list(csv.DictReader(file))
        return {name: [float(row[name] or "nan") for row in rows] for name in (rows[0] if rows else {})}

    def curve(self, name: str) -> tuple[list[float], list[float]]:
        """Epochs and values of one column, where it has values."""
        pairs = zip(self.metrics.get("epoch", []), self.metrics.get(name, []), strict=False)
        kept = [pair for pair in pairs if not math.isnan(pair[1])]
        return [epoch for epoch, _ in kept], [value for _, value in kept]

    @cached_property
    def placements(self) -> tuple[list[int], dict[str, Tensor]]:
        """The epochs of ``positions.npz``, and for each position and width parameter its ``(E, *shape)`` history."""
        import numpy as np

        path = self.folder / "positions.npz"
        if not path.exists():  # a stock model has no positions
            return [], {}
        with np.load(path) as file:
            histories = {name: torch.from_numpy(file[name]) for name in file.files}
        return [int(epoch) for epoch in histories.pop("epochs")], histories


def read_run(folder: Path, recipe: str, variant: str, seed: int) -> Run | None:
    """The run in ``folder``, or None where none was finished."""
    try:
        summary = json.loads((folder / SUMMARY).read_text())
    except FileNotFoundError:
        return None
    return Run(recipe, variant, seed, folder, summary) if summary.get("complete") else None


def other_run(folder: Path, recipe: Recipe) -> list[str]:
    """In what the run of a folder differs from a recipe; nothing where none has begun."""
    path = folder / RECIPE
    begun = (folder / SUMMARY).is_file() or any((folder / CHECKPOINTS).glob("*.ckpt"))
    return same_run(load_recipe(path), recipe) if begun and path.is_file() else []


def run_folder(folder: Path, recipe: str, variant: str, seed: int) -> Path:
    """Where in the folder of a comparison a run is."""
    return folder / recipe / f"{variant}-{seed}"


def read_record(folder: Path) -> dict[str, Any]:
    """What is compared in a folder, by which command, on what."""
    try:
        return dict(json.loads((folder / RECORD).read_text()))
    except FileNotFoundError:
        raise FileNotFoundError(f"folder must be that of a comparison, found no {RECORD} in {folder}") from None


def read_comparison(folder: Path) -> list[Run]:
    """The complete runs of a comparison."""
    planned = read_record(folder)["runs"]
    return [run for which in planned if (run := read_run(run_folder(folder, *which), *which)) is not None]


@dataclass(frozen=True)
class Row:
    """A line of the table: one variant over its seeds.

    Attributes:
        runs: of the variant.
        summaries: for each measure its mean and standard error, or None where a run has no such value.
    """

    runs: Sequence[Run]
    summaries: Mapping[str, Summary | None]

    @property
    def entries(self) -> Mapping[str, Any]:
        """What all runs of the variant have in common: model, size, count, interpolation, parameters."""
        return self.runs[0].summary

    @property
    def size_and_count(self) -> str:
        """The kernel in the paper's notation: its side squared, and the elements in it."""
        size, count = self.entries["size"], self.entries["count"]
        window = "-" if size is None else f"{size}²" if isinstance(size, int) else "×".join(map(str, size))
        return f"{window} / {'-' if count is None else count}"

    @property
    def interpolation(self) -> str:
        """The interpolation, and the variant where it has a name of its own."""
        interpolation, variant = str(self.entries["interpolation"]), self.runs[0].variant
        return interpolation if variant in (interpolation, "custom") else f"{interpolation} ({variant})"


def make_table(runs: Iterable[Run]) -> list[Row]:
    """A row for each recipe and variant, in the order in which they come."""
    groups: dict[tuple[str, str], list[Run]] = {}
    for run in runs:
        groups.setdefault((run.recipe, run.variant), []).append(run)
    rows = []
    for members in groups.values():
        summaries: dict[str, Summary | None] = {}
        for measure in MEASURES:
            values = [run.summary[measure] for run in members if run.summary.get(measure) is not None]
            summaries[measure] = summarize(values) if len(values) == len(members) else None
        rows.append(Row(members, summaries))
    return rows


def values_by_variant(runs: Iterable[Run], measure: str) -> dict[str, list[float]]:
    """For each variant the values of its runs, those that have one."""
    values: dict[str, list[float]] = {}
    for run in runs:
        value = run.summary.get(measure)
        if value is not None and math.isfinite(value):
            values.setdefault(run.variant, []).append(value)
    return values


def by_recipe(runs: Iterable[Run]) -> dict[str, list[Run]]:
    """The runs of each recipe: variants are compared within one."""
    groups: dict[str, list[Run]] = {}
    for run in runs:
        groups.setdefault(run.recipe, []).append(run)
    return groups


def find_differences(runs: Sequence[Run]) -> dict[str, list[Difference]]:
    """For each tested measure, the tests of each pair of variants of one recipe."""
    return {measure: pairwise_tests(values_by_variant(runs, measure)) for measure in TESTED}

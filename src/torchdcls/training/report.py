"""One HTML page about a comparison, with everything in it: it can be mailed, printed, and read without a network."""

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import figures
from .jobs import duration
from .results import MEASURES, TESTED, Row, Run, by_recipe, find_differences, make_table, read_record, values_by_variant
from .statistics import notes
from .tables import HEADER, TESTS_HEADER, cells, p_in_words, test_cells

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_PIXELS_AN_INCH = 100  # of a figure, on the page; screens with finer pixels get twice as many
_SEEN = {
    "train_loss": "Bars of the training loss",
    "val_top1": "Bars of top-1",
    "train_loss_by_epoch": "Curves of the training loss",
    "val_top1_by_epoch": "Curves of top-1",
    "kernels": "Kernels after training",
    "paths": "Ways of the elements through training",
    "movement": "Movement and widths of the elements by epoch",
}


@dataclass(frozen=True)
class Picture:
    """An image in the page itself.

    Attributes:
        data: a data URI.
        alt: what is seen, for those who do not see it.
        width, height: on the page, in CSS pixels.
    """

    data: str
    alt: str
    width: int
    height: int


def write_report(folder: Path, runs: Sequence[Run]) -> Path:
    """Write ``report.html`` about ``runs`` into the comparison's folder, and return its path."""
    import jinja2

    record = read_record(folder)
    environment = jinja2.Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
    )
    template = environment.from_string((resources.files(__package__) / "templates" / "report.html").read_text())
    groups = by_recipe(runs)
    drawn = folder / "figures"
    drawn.mkdir(exist_ok=True)
    variants = dict.fromkeys(run.variant for run in runs)
    page = template.render(
        title=f"{', '.join(variants)} on {', '.join(groups)}",
        time=record["time"],
        versions=record["versions"],
        hardware=record["hardware"],
        command=record["command"],
        planned=len(record["runs"]),
        missing=len(record["runs"]) - len(runs),
        header=HEADER,
        tests_header=TESTS_HEADER,
        columns=figures.COLUMNS,
        sections=[_section(recipe, members, drawn) for recipe, members in groups.items()],
        runs_header=("epochs", *(name for name, _ in MEASURES.values()), "time"),
        runs=[_run_cells(run) for run in runs],
        recipes={
            f"{recipe}, {row.runs[0].variant}": (row.runs[0].folder / "recipe.yaml").read_text()
            for recipe, members in groups.items()
            for row in make_table(members)
        },
    )
    path = folder / "report.html"
    path.write_text(page)
    return path


def _section(recipe: str, runs: Sequence[Run], folder: Path) -> dict[str, Any]:
    """What the page says about the runs of one recipe; its figures are saved in ``folder``, too."""
    rows = make_table(runs)
    names = ", ".join(row.runs[0].variant for row in rows)
    pictures = {
        name: _picture(figure, folder / f"{recipe}_{name}.png", f"{_SEEN[name]} of {names}")
        for name, figure in figures.of_comparison(runs)
    }
    return {
        "recipe": recipe,
        "model": runs[0].summary["model"],
        "findings": findings(rows),
        "rows": _marked(rows),
        "tests": [test_cells(measure, test) for measure, tests in find_differences(runs).items() for test in tests],
        "notes": notes(values_by_variant(runs, TESTED[0])),
        "variants": [_variant(recipe, row.runs[0], folder) for row in rows],
        "results": [pictures[measure] for measure in TESTED if measure in pictures],
        "learning": [pictures[f"{measure}_by_epoch"] for measure in TESTED if measure in pictures],
    }


def _variant(recipe: str, run: Run, folder: Path) -> dict[str, Any]:
    """The pictures of the first run of a variant, None for those that there are not."""
    name = f"{recipe}_{run.variant}"
    pictures = {
        kind: _picture(figure, folder / f"{name}_{kind}.png", f"{_SEEN[kind]} of {run.variant}")
        for kind, figure in figures.of_run(run)
    }
    moving = folder / f"{name}_positions.gif"
    if figures.animate(run, moving):
        pictures["animation"] = _embed(moving, f"Elements of {run.variant} moving through training")
    return {"name": run.variant, "seed": run.seed, **dict.fromkeys((*_SEEN, "animation")), **pictures}


def findings(rows: Sequence[Row]) -> list[str]:
    """The result in words, with as much confidence as the tests give."""
    sentences = []
    for measure in TESTED:
        if (best := _best(rows, measure)) is not None and (summary := best.summaries[measure]) is not None:
            name, digits = MEASURES[measure]
            kind = "Lowest" if "loss" in name else "Highest"
            sentences.append(f"{kind} {name}: {best.runs[0].variant}, {summary.format(digits)}.")
    tested = find_differences([run for row in rows for run in row.runs])
    for measure, tests in tested.items():
        name, digits = MEASURES[measure]
        found = [test for test in tests if test.p_holm < 0.05]
        pairs = [
            f"{test.first} and {test.second} ({test.difference:+.{digits}f}, p = {p_in_words(test.p_holm)})"
            for test in found
        ]
        if tests:
            corrected = f", corrected for {len(tests)} tests" if len(tests) > 1 else ""
            what = "; ".join(pairs) or "no pair of variants"
            sentences.append(f"Different in {name} at p < 0.05{corrected}: {what}.")
    return sentences


def _best(rows: Sequence[Row], measure: str) -> Row | None:
    """The one row with the best mean, if all rows have one."""
    means = [summary.mean for row in rows if (summary := row.summaries[measure]) is not None]
    best = (min if "loss" in measure else max)(means, default=0.0)
    return rows[means.index(best)] if len(means) == len(rows) > means.count(best) == 1 else None


def _marked(rows: Sequence[Row]) -> list[list[dict[str, Any]]]:
    """The cells of the table, each with whether it is the best of its column."""
    first = len(HEADER) - len(MEASURES)
    best = {first + column: _best(rows, measure) for column, measure in enumerate(MEASURES)}
    return [[{"text": text, "best": best.get(i) is row} for i, text in enumerate(cells(row))] for row in rows]


def _run_cells(run: Run) -> tuple[str, ...]:
    values = [(run.summary.get(measure), digits) for measure, (_, digits) in MEASURES.items()]
    return (
        f"{run.recipe}, {run.variant}, seed {run.seed}",
        str(run.summary["epochs"]),
        *("-" if value is None else f"{value:.{digits}f}" for value, digits in values),
        duration(run.summary["seconds"]),
    )


def _picture(figure: "Figure", path: Path, alt: str) -> Picture:
    figure.savefig(path, dpi=2 * _PIXELS_AN_INCH, facecolor="white")
    return _embed(path, alt, scale=2)


def _embed(path: Path, alt: str, scale: int = 1) -> Picture:
    from PIL import Image

    with Image.open(path) as image:
        width, height = image.size
    data = f"data:image/{path.suffix[1:]};base64,{base64.b64encode(path.read_bytes()).decode()}"
    return Picture(data, alt, width // scale, height // scale)

"""`python -m benchmarks.report`: write the tables of the README and the docs anew from `benchmarks/results/`.

A page asks for a table by the comment `<!-- table: NAME -->`, for what a grid of problems says of the automatic
choice by `<!-- choice: NAME -->`; either ends at `<!-- end -->`.
"""

import csv
import re
import statistics
from pathlib import Path

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results"
_PLACE = re.compile(r"(<!-- (table|choice): ([\w/]+) -->\n).*?(<!-- end -->)", re.DOTALL)
# How much slower than the best backend, and than torch, the automatic choice may be.
WORST, WORST_OF_TORCH = 1.25, 1.1


def pages() -> list[Path]:
    """Where tables may stand."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def with_tables(text: str) -> str:
    """A page with its tables as the results have them now."""
    write = {"table": _table, "choice": _choice}
    return _PLACE.sub(lambda found: found[1] + write[found[2]](RESULTS / f"{found[3]}.csv") + found[4], text)


def _read(path: Path) -> list[dict[str, str]]:
    with path.open() as file:
        return list(csv.DictReader(file))


def _origin(row: dict[str, str]) -> str:
    return f"Measured on {row['hardware']}, torch {row['torch']}, {row['date']}.\n"


def _table(path: Path) -> str:
    rows = _read(path)
    if "contender" not in rows[0]:  # no measurement of time: the columns as they are
        lines = ["| " + " | ".join(rows[0]) + " |", "|---|" + "---:|" * (len(rows[0]) - 1)]
        return "\n".join([*lines, *("| " + " | ".join(row.values()) + " |" for row in rows)]) + "\n"
    lines = [
        _origin(rows[0]),
        "| problem | | ms | times faster | peak MB | target |",
        "|---|---|---:|---:|---:|---|",
    ]
    problem = ""
    for row in rows:
        shown = "" if row["problem"] == problem else row["problem"]
        problem = row["problem"]
        milliseconds, faster, megabytes = (
            f"{float(row[name]):,.{digits}f}"
            for name, digits in (("milliseconds", 1), ("times_faster", 2), ("megabytes", 0))
        )
        lines.append(f"| {shown} | {row['contender']} | {milliseconds} | {faster} | {megabytes} | {row['target']} |")
    return "\n".join(lines) + "\n"


def _choice(path: Path) -> str:
    """How often, and by how much, another backend would have been faster than the automatic choice."""
    rows = _read(path)
    speed: dict[str, dict[str, float]] = {}
    for row in rows:
        speed.setdefault(row["problem"], {})[row["contender"]] = float(row["times_faster"])
    kinds: dict[str, list[str]] = {}
    for problem in speed:
        kind, size, *_ = problem.split()
        taps = [int(n) for n in size.split("x")]
        wide = 25 if len(taps) == 1 else 8
        width = f"{wide} taps or more" if max(taps) >= wide else "narrower"
        kinds.setdefault(f"{len(taps)}-D {kind}, {width}", []).append(problem)
    lines = [
        _origin(rows[0]),
        "| problems | | times faster than torch, median | least | slower than the best backend, at most | "
        f"by more than {WORST:g} | slower than torch by more than {WORST_OF_TORCH:g} |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    for kind, members in [*sorted(kinds.items()), ("all", list(speed))]:
        auto = [speed[problem]["auto"] for problem in members]
        behind = [max(speed[problem].values()) / speed[problem]["auto"] for problem in members]
        lines.append(
            f"| {kind} | {len(members)} | {statistics.median(auto):.2f} | {min(auto):.2f} | {max(behind):.2f} | "
            f"{sum(b > WORST for b in behind)} | {sum(a < 1 / WORST_OF_TORCH for a in auto)} |"
        )
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    for page in pages():
        page.write_text(with_tables(page.read_text()))

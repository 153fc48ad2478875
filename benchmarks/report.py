"""`python -m benchmarks.report`: write the tables of the README and the docs anew from `benchmarks/results/`.

A page asks for a table by the comment `<!-- table: NAME -->`; it ends at `<!-- end -->`.
"""

import csv
import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results"
_TABLE = re.compile(r"(<!-- table: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


def pages() -> list[Path]:
    """Where tables may stand."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def with_tables(text: str) -> str:
    """A page with its tables as the results have them now."""
    return _TABLE.sub(lambda found: found[1] + _table(RESULTS / f"{found[2]}.csv") + found[3], text)


def _table(path: Path) -> str:
    with path.open() as file:
        rows = list(csv.DictReader(file))
    if "contender" not in rows[0]:  # no measurement of time: the columns as they are
        lines = ["| " + " | ".join(rows[0]) + " |", "|---|" + "---:|" * (len(rows[0]) - 1)]
        return "\n".join([*lines, *("| " + " | ".join(row.values()) + " |" for row in rows)]) + "\n"
    lines = [
        f"Measured on {rows[0]['hardware']}, torch {rows[0]['torch']}, {rows[0]['date']}.\n",
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


if __name__ == "__main__":
    for page in pages():
        page.write_text(with_tables(page.read_text()))

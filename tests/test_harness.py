"""The benchmark harness must refuse to time wrong results."""

import csv

import pytest
import torch
from benchmarks import report
from benchmarks.harness import Comparison, WrongResultError, measure, table, write_csv

CPU = torch.device("cpu")


def test_it_measures_and_writes(tmp_path):
    x = torch.randn(256, 256)
    comparison = Comparison(
        "squares",
        {"peer": lambda: [x.square()], "ours": lambda: [x * x]},
        targets={"ours": 1e9},
        memory_targets={"ours": 10},
        repeats=3,
    )
    rows = measure("case", comparison, CPU)
    assert [row.contender for row in rows] == ["peer", "ours"]
    assert rows[0].times_faster == 1
    assert rows[0].megabytes == pytest.approx(0.25)
    assert "MISSED" in rows[1].target
    assert "memory <= 10: 1.000 met" in rows[1].target
    assert "squares" in table(rows)
    write_csv(rows, tmp_path / "new" / "case.csv", CPU)
    with (tmp_path / "new" / "case.csv").open() as file:
        written = list(csv.DictReader(file))
    assert written[1]["contender"] == "ours"
    assert written[1]["torch"] == torch.__version__
    assert "cores" in written[1]["hardware"]


@pytest.mark.parametrize("wrong", [lambda: [torch.ones(3)], lambda: [torch.full((3,), float("nan"))], list])
def test_it_refuses_to_report_on_a_wrong_result(wrong):
    comparison = Comparison("zeros", {"peer": lambda: [torch.full((3,), 2.0)], "ours": wrong})
    with pytest.raises(WrongResultError, match="ours"):
        measure("case", comparison, CPU)


@pytest.mark.parametrize("page", report.pages(), ids=lambda page: page.name)
def test_tables_on_the_pages_are_those_of_the_results(page):
    assert report.with_tables(page.read_text()) == page.read_text(), "run python -m benchmarks.report"


def test_the_choice_is_held_against_the_best_backend_and_against_torch(tmp_path):
    speeds = {
        "depthwise 7x7 on 1x2x9x9": {"torch": 1, "auto": 0.8, "direct": 2},
        "depthwise 5x5 on 1x2x9x9": {"torch": 1, "auto": 3, "direct": 3.5},
        "dense 25 on 1x2x30": {"torch": 1, "auto": 1},
    }
    lines = ["problem,contender,times_faster,hardware,torch,date"]
    lines += [
        f"{problem},{name},{n},a machine,2.0,today" for problem, found in speeds.items() for name, n in found.items()
    ]
    (tmp_path / "grid.csv").write_text("\n".join(lines))
    rows = report._choice(tmp_path / "grid.csv").splitlines()
    assert rows[0] == "Measured on a machine, torch 2.0, today."
    assert rows[-3:] == [
        "| 1-D dense, 25 taps or more | 1 | 1.00 | 1.00 | 1.00 | 0 | 0 |",
        "| 2-D depthwise, narrower | 2 | 1.90 | 0.80 | 2.50 | 1 | 1 |",
        "| all | 3 | 1.00 | 0.80 | 2.50 | 1 | 1 |",
    ]

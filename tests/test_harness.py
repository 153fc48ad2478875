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

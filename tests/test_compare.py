import csv
import html.parser
import json
import math
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tests.runs import LOSS, is_running, leave_comparison, leave_run, standard_error, train_or_fail, wait_for

from torchdcls.training import compare, jobs, report, results, tables
from torchdcls.training.cli import main
from torchdcls.training.recipe import load_recipe
from torchdcls.training.results import run_folder

ROOT = Path(__file__).parent.parent
SEEDS = (0, 1, 2)


@pytest.fixture(scope="module")
def comparison(tmp_path_factory):
    """A comparison of digits that was never trained, with its tables and report."""
    folder = leave_comparison(tmp_path_factory.mktemp("comparison"))
    compare.conclude(folder)
    return folder


def read_csv(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


# ---- the table


def test_the_table_has_means_and_standard_errors_over_seeds(comparison):
    rows = read_csv(comparison / "table.csv")
    assert [row["variant"] for row in rows] == list(LOSS)
    for row in rows:
        losses = [LOSS[row["variant"]] + 0.01 * seed for seed in SEEDS]
        assert float(row["train_loss_mean"]) == pytest.approx(sum(losses) / 3)
        assert float(row["train_loss_error"]) == pytest.approx(standard_error(losses))
        assert float(row["val_top1_error"]) == pytest.approx(40 * standard_error(losses))
        assert (row["runs"], row["parameters"], row["model"]) == ("3", "1234567", "convnext_atto")


def test_the_table_is_laid_out_as_the_papers(comparison):
    header, rule, first, *_, last = (comparison / "table.md").read_text().splitlines()
    assert header == (
        "| model | size² / count | interpolation | parameters | runs | training loss | top-5 (%) | top-1 (%) |"
    )
    assert rule.count("|") == header.count("|")
    assert first == "| convnext_atto | 7² / 49 | stock | 1,234,567 | 3 | 0.510 ± 0.006 | 99.00 ± 0.00 | 79.60 ± 0.23 |"
    assert last.startswith("| convnext_atto | 15² / 5 | gauss |")


def test_results_has_a_line_for_each_run(comparison):
    rows = read_csv(comparison / "results.csv")
    assert [(row["variant"], row["seed"]) for row in rows] == [(v, str(s)) for v in LOSS for s in SEEDS]
    assert all((comparison / row["folder"] / "summary.json").exists() for row in rows)
    assert float(rows[-1]["train_loss"]) == pytest.approx(0.22)


def test_every_pair_is_tested_on_training_loss_and_top1(comparison):
    rows = read_csv(comparison / "tests.csv")
    assert len(rows) == 2 * 6
    first = rows[0]
    assert (first["measure"], first["first"], first["second"]) == ("train_loss", "stock", "bilinear")
    # means 0.1 apart, both with a variance of 1e-4: t = 0.1 / sqrt(1e-4 * 2 / 3)
    assert float(first["t"]) == pytest.approx(0.1 / math.sqrt(2e-4 / 3))
    assert float(first["difference"]) == pytest.approx(0.1)


def test_a_variant_is_named_where_its_interpolation_says_too_little(tmp_path):
    run = results.Run("r", "triangle_fixed", 0, tmp_path, {"interpolation": "triangle", "size": 15, "count": 12})
    assert results.Row([run], {}).interpolation == "triangle (triangle_fixed)"
    assert (
        results.Row([results.Run("r", "gauss", 0, tmp_path, {"interpolation": "gauss"})], {}).interpolation == "gauss"
    )


def test_a_measure_that_a_run_does_not_have_is_a_dash(tmp_path):
    leave_comparison(tmp_path, ["stock", "gauss"], [0, 9])
    rows = results.make_table(results.read_comparison(tmp_path))
    assert [tables.cells(row)[-2] for row in rows] == ["-", "-"]
    assert tables.cells(rows[0])[-3] == "0.545 ± 0.045"
    assert results.values_by_variant(rows[0].runs, "val_top5") == {"stock": [99.0]}


def test_rounding_makes_no_negative_zero():
    from torchdcls.training.statistics import Difference

    cells = tables.test_cells("val_top1", Difference("stock", "gauss", -0.0004, -0.001, 0.99, 1.0))
    assert cells == ("top-1", "stock", "gauss", "+0.00", "0.00", "0.990", "1.000")


# ---- the report


class Page(html.parser.HTMLParser):
    """What a page is made of; fails where tags are not closed in order."""

    EMPTY = frozenset({"meta", "img", "source", "br"})

    def __init__(self, text):
        super().__init__()
        self.open, self.text, self.references, self.images = [], [], [], []
        self.feed(text)
        assert not self.open

    def handle_starttag(self, tag, attributes):
        values = dict(attributes)
        self.references += [values[name] for name in ("src", "href", "srcset", "data", "poster") if name in values]
        if tag == "img":
            self.images.append(values)
        if tag not in self.EMPTY:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)


def test_the_report_has_the_recipes_of_every_model_and_variant(tmp_path):
    names = ("digits", "other")
    for name in names:
        for variant, seed in (("stock", 0), ("gauss", 1)):  # not all of one seed
            recipe = load_recipe("digits", [f"name={name}", f"seed={seed}"], variant)
            leave_run(recipe, run_folder(tmp_path, name, variant, seed))
    planned = [[name, variant, seed] for name in names for variant, seed in (("stock", 0), ("gauss", 1))]
    leave_comparison(tmp_path, variants=(), planned=planned)
    compare.conclude(tmp_path)
    text = (tmp_path / "report.html").read_text()
    assert all(f"Recipe {name}, {variant}" in text for name in names for variant in ("stock", "gauss"))


@pytest.fixture(scope="module")
def page(comparison):
    return Page((comparison / "report.html").read_text())


def test_the_report_has_everything_in_it(comparison, page):
    text = (comparison / "report.html").read_text()
    assert len(page.images) == 4 + 3 * 3, "results and curves; ways, movement and an animation for each that has any"
    assert all(
        reference.startswith(("data:image/png;base64,", "data:image/gif;base64,")) for reference in page.references
    )
    assert not re.search(r"https?:|@import|url\(|<script|<link", text), "nothing is fetched"
    assert "prefers-color-scheme: dark" in text
    assert "@media print" in text
    assert "width=device-width" in text
    assert all(image["alt"] and int(image["width"]) and int(image["height"]) for image in page.images)


def test_the_report_says_what_was_found_and_how(page):
    text = " ".join("".join(page.text).split())
    for words in (
        "stock, bilinear, triangle, gauss on digits",
        "Lowest training loss: gauss, 0.210 ± 0.006.",
        "Highest top-1: gauss, 91.60 ± 0.23.",
        "Different in training loss at p < 0.05, corrected for 6 tests: stock and bilinear (+0.100, p = ",
        "0.510 ± 0.006",
        "6 tests are made for each measure",
        "torchdcls compare digits",
        "a machine with <angle brackets>",
        "digits, gauss, seed 2",
        "1 min 1 s",
        "Recipe digits, gauss",
        "interpolation: gauss",
    ):
        assert words in text, words


def test_the_best_of_each_column_is_marked(comparison):
    text = (comparison / "report.html").read_text()
    assert re.findall(r'class="number best">([^<]*)<', text) == ["0.210 ± 0.006", "91.60 ± 0.23"], "top-5 is a tie"


def test_the_report_says_how_many_runs_are_missing_and_makes_no_test_of_single_ones(tmp_path, capsys):
    planned = [["digits", variant, seed] for variant in ("stock", "gauss") for seed in (0, 1)]
    leave_comparison(tmp_path, ["stock", "gauss"], [0], planned)
    compare.conclude(tmp_path)
    text = "".join(Page((tmp_path / "report.html").read_text()).text)
    assert "2 of 4 runs are not complete" in text
    assert "stock, gauss: one run only, so no standard error and no test" in text
    assert "p (Holm)" not in text
    assert "one run only" in capsys.readouterr().out
    assert read_csv(tmp_path / "tests.csv") == []


def test_findings_name_no_best_of_equals(tmp_path):
    leave_comparison(tmp_path, ["gauss"])
    assert report.findings(results.make_table(results.read_comparison(tmp_path))) == []


def test_figures_of_a_comparison_lie_in_its_folder(comparison):
    names = {path.name for path in (comparison / "figures").iterdir()}
    assert {
        "digits_train_loss.png",
        "digits_train_loss_by_epoch.png",
        "digits_gauss_paths.png",
        "digits_gauss_positions.gif",
    } <= names
    assert not {name for name in names if name.startswith("digits_stock")}, "a stock model has no positions"


# ---- what is to be done


def planned(folder, *words, recipes=("digits",), variants=None, seeds=(0, 1)):
    return compare.plan(folder, recipes, variants, seeds, words)


def test_all_variants_and_seeds_are_planned_with_values_of_dcls_for_those_that_have_it(tmp_path):
    plan = planned(tmp_path, "dcls.dilated_kernel_size=9", "trainer.epochs=7")
    assert [job.name for job in plan] == [f"digits/{variant}-{seed}" for variant in LOSS for seed in (0, 1)]
    assert plan[0].recipe.dcls is None
    assert {job.recipe.dcls.dilated_kernel_size for job in plan[2:]} == {9}
    assert {(job.recipe.trainer.epochs, job.folder.parent) for job in plan} == {(7, tmp_path / "digits")}
    assert [job.recipe.seed for job in plan[:2]] == [0, 1]


def test_several_recipes_are_compared_side_by_side(tmp_path):
    load_recipe("digits", ["name=other"]).save(tmp_path / "other.yaml")
    plan = planned(tmp_path, recipes=("digits", str(tmp_path / "other.yaml")), seeds=(0,))
    assert [job.name for job in plan] == [*(f"digits/{variant}-0" for variant in LOSS), "other/gauss-0"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"words": ["seed=3"]}, "seeds and variants are given by --seeds and --variants, got seed=3"),
        ({"seeds": (1, 1)}, "--seeds must be different ones, got 1 1"),
        ({"variants": ["gauss", "gauss"]}, "--variants must be different ones, got gauss gauss"),
        ({"variants": ["guass"]}, "variant 'guass' is not one of digits's; did you mean gauss"),
        ({"recipes": ("digits", "digits")}, "recipes must be different ones, got digits digits"),
    ],
)
def test_plans_that_make_no_sense_are_refused(change, message, tmp_path):
    with pytest.raises(ValueError, match=re.escape(message)):
        planned(tmp_path, *change.pop("words", ()), **change)


def test_recipes_of_one_name_are_refused(tmp_path):
    load_recipe("digits").save(tmp_path / "copy.yaml")
    with pytest.raises(ValueError, match=r"recipes must have names of their own, got digits, .*copy\.yaml"):
        planned(tmp_path, recipes=("digits", str(tmp_path / "copy.yaml")), variants=None, seeds=(0,))


def test_a_folder_with_another_run_is_refused_before_anything_is_trained(tmp_path):
    leave_run(load_recipe("digits", ["optimizer.lr=1"], "gauss"), tmp_path / "digits" / "gauss-0")
    with pytest.raises(ValueError, match=r"gauss-0 holds a run of another recipe: optimizer.lr is 1.0 .* --folder"):
        planned(tmp_path)


def test_a_complete_run_is_done_whatever_machine_it_ran_on(tmp_path):
    leave_run(load_recipe("digits", ["machine.threads=1"], "gauss"), tmp_path / "digits" / "gauss-0")
    assert [job.name for job in planned(tmp_path) if compare.is_done(job)] == ["digits/gauss-0"]
    (tmp_path / "digits" / "gauss-0" / "summary.json").write_text(json.dumps({"complete": False}))
    assert not any(map(compare.is_done, planned(tmp_path)))


# ---- side by side


def slots(monkeypatch, *words, gpus=(), cores=8, devices=None, side_by_side=1):
    monkeypatch.setattr(jobs, "_visible_gpus", lambda: list(gpus))
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(cores)), raising=False)
    return jobs.make_slots(load_recipe("digits", ["machine.accelerator=auto", *words]), devices, side_by_side)


def test_runs_on_a_cpu_share_its_cores(monkeypatch):
    assert slots(monkeypatch) == [jobs.Slot()]
    assert slots(monkeypatch, side_by_side=3) == [jobs.Slot(threads=2)] * 3
    assert slots(monkeypatch, cores=2, side_by_side=4) == [jobs.Slot(threads=1)] * 4
    assert slots(monkeypatch, "machine.threads=5", side_by_side=2) == [jobs.Slot(threads=5)] * 2
    assert slots(monkeypatch, "machine.devices=2", side_by_side=2) == [jobs.Slot(threads=2)] * 2


def test_each_gpu_has_one_run_or_several(monkeypatch):
    gpus = ("3", "5", "6")
    assert [slot.gpus for slot in slots(monkeypatch, gpus=gpus)] == ["3", "5", "6"]
    assert [slot.gpus for slot in slots(monkeypatch, gpus=gpus, devices=2)] == ["3", "5"]
    assert [slot.gpus for slot in slots(monkeypatch, gpus=gpus, devices=2, side_by_side=2)] == ["3", "5", "3", "5"]
    assert [slot.gpus for slot in slots(monkeypatch, "machine.devices=2", gpus=("0", "1", "2", "3", "4"))] == [
        "0,1",
        "2,3",
    ]
    assert [slot.gpus for slot in slots(monkeypatch, "machine.devices=-1", gpus=gpus)] == ["3,5,6"]
    assert [slot.gpus for slot in slots(monkeypatch, "machine.accelerator=cpu", gpus=gpus)] == [None]


def test_gpus_that_a_user_made_visible_are_those_that_are_used(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert jobs._visible_gpus() == ["0", "1"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,7")
    assert jobs._visible_gpus() == ["4", "7"]


@pytest.mark.parametrize(
    ("words", "options", "message"),
    [
        ([], {"side_by_side": 0}, "--jobs must be at least 1, got 0"),
        ([], {"devices": 2}, "--devices counts GPUs, got 2 where runs are done on the CPU"),
        ([], {"devices": 3, "gpus": ("0",)}, "--devices must be from 1 to the 1 GPUs that torch sees, got 3"),
        (["machine.accelerator=gpu"], {}, "machine.accelerator is gpu, and no GPU is visible"),
        (["machine.devices=4"], {"gpus": ("0", "1")}, "a run takes machine.devices = 4 GPUs, and there are 2 to use"),
        (["machine.nodes=2"], {}, "runs are compared on one machine, got machine.nodes = 2"),
    ],
)
def test_devices_that_are_not_there_are_refused(words, options, message, monkeypatch):
    with pytest.raises(ValueError, match=re.escape(message)):
        slots(monkeypatch, *words, **options)


@pytest.fixture
def _light(monkeypatch):
    """Processes are forked from a server that has not loaded Lightning."""
    monkeypatch.setattr(jobs, "PRELOADED", ["tests.runs"])


@pytest.mark.usefixtures("_light")
def test_a_run_that_fails_takes_no_other_down_and_is_named_with_its_log(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(compare, "_train", train_or_fail)
    words = ["compare", "digits", "--seeds", "0", "--jobs", "2", "--folder", str(tmp_path)]
    assert main(words) == 1
    out = capsys.readouterr().out
    assert out.splitlines()[0] == f"4 runs in {tmp_path}: 0 complete, 4 to do, 2 at a time"
    assert "digits/triangle-0: FAILED, ValueError: the triangle cannot be trained" in out
    assert "digits/bilinear-0: FAILED, killed by SIGKILL" in out
    assert "digits/gauss-0: done in" in out
    assert set(out.splitlines()[-2:]) == {
        f"FAILED: digits/{name}, see {tmp_path / 'digits' / name}.log" for name in ("bilinear-0", "triangle-0")
    }
    assert "Traceback" in (tmp_path / "digits" / "triangle-0.log").read_text()
    assert "threads 1, resume True" in (tmp_path / "digits" / "gauss-0.log").read_text()
    assert [row["variant"] for row in read_csv(tmp_path / "results.csv")] == ["stock", "gauss"], "what there is counts"

    monkeypatch.setattr(compare, "_train", leave_run)
    assert main(words) == 0
    out = capsys.readouterr().out
    assert out.splitlines()[0] == f"4 runs in {tmp_path}: 2 complete, 2 to do, 2 at a time"
    assert len(read_csv(tmp_path / "results.csv")) == 4

    monkeypatch.setattr(compare, "run_jobs", None)
    assert main(words) == 0, "nothing is left to do"


@pytest.mark.usefixtures("_light")
def test_no_complete_run_makes_no_report(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(compare, "_train", train_or_fail)
    assert main(["compare", "digits", "--variants", "triangle", "--seeds", "0", "--folder", str(tmp_path)]) == 1
    assert "no run is complete, so there is nothing to report" in capsys.readouterr().out
    assert not (tmp_path / "report.html").exists()


def test_a_dry_run_does_nothing(tmp_path, capsys):
    folder = tmp_path / "new"
    assert main(["compare", "digits", "--variants", "gauss", "--seeds", "4", "--folder", str(folder), "--dry-run"]) == 0
    assert capsys.readouterr().out.splitlines()[1] == "  digits/gauss-4: to do"
    assert not folder.exists()


FOREVER = """
import sys
from pathlib import Path
from tests.runs import train_forever
from torchdcls.training import compare, jobs
from torchdcls.training.cli import main

if __name__ == "__main__":
    compare._train, jobs.PRELOADED = train_forever, ["tests.runs"]
    words = ["--variants", "stock", "gauss", "--seeds", "0", "--jobs", "2", "--folder", sys.argv[1]]
    sys.exit(main(["compare", "digits", *words]))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_no_process_outlives_a_comparison_that_is_stopped(number, tmp_path):
    script = tmp_path / "forever.py"
    script.write_text(FOREVER)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    program = subprocess.Popen(
        [sys.executable, str(script), str(tmp_path / "runs")], env=environment, stdout=subprocess.PIPE, text=True
    )
    files = [tmp_path / "runs" / "digits" / f"{variant}-0.pids" for variant in ("stock", "gauss")]
    wait_for(lambda: all(file.exists() for file in files))
    pids = [int(pid) for file in files for pid in file.read_text().split()]
    assert len(pids) == 4
    assert all(map(is_running, pids))
    program.send_signal(number)
    out, _ = program.communicate(timeout=30)
    wait_for(lambda: not any(map(is_running, pids)))
    if number == signal.SIGINT:
        assert program.returncode == 130
        assert "stopped; the same command goes on from here" in out


# ---- with real training


def test_the_command_trains_compares_and_skips_what_is_there(tmp_path, capsys):
    words = ["compare", "digits", "--variants", "gauss", "--seeds", "0", "--folder", str(tmp_path)]
    words += ["trainer.epochs=1", "data.subset=100", "dcls.dilated_kernel_size=9", "machine.tensorboard=false"]
    words += ["model.arguments.dims=[4, 4, 8, 8]", "machine.pictures=false"]
    assert main(words) == 0, capsys.readouterr().out
    assert f"report: {tmp_path / 'report.html'}" in capsys.readouterr().out
    assert "| 9² / " in (tmp_path / "table.md").read_text()
    page = Page((tmp_path / "report.html").read_text())
    assert len(page.images) == 4 + 4, "with the kernels, which come from the checkpoint"
    assert main(words) == 0
    assert capsys.readouterr().out.startswith(f"1 run in {tmp_path}: 1 complete, 0 to do, 1 at a time")
    assert main(["plot", "run", str(tmp_path / "digits" / "gauss-0"), "--output", str(tmp_path / "drawn")]) == 0
    drawn = {path.name for path in (tmp_path / "drawn").iterdir()}
    assert drawn == {"kernels.png", "paths.png", "movement.png", "positions.gif"}

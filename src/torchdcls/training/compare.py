"""The paper's table: models x interpolations x seeds, trained side by side, tested and reported.

    torchdcls compare convnext_tiny_imagenet convformer_s18_imagenet data.root=/data/imagenet machine.accumulate=8
    torchdcls compare digits --variants stock gauss --seeds 0 1 2 3 4 --jobs 2

Runs that are complete are skipped and those that were interrupted go on, so the same command can be given
again after a fault, and with more seeds or variants later.
"""

import argparse
import contextlib
import datetime
import importlib.metadata
import json
import os
import platform
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from .._version import __version__
from .jobs import Job, make_slots, run_jobs
from .recipe import Recipe, load_recipe, variants
from .report import write_report
from .results import (
    RECORD,
    TESTED,
    by_recipe,
    find_differences,
    make_table,
    other_run,
    read_comparison,
    read_run,
    run_folder,
    values_by_variant,
)
from .statistics import notes
from .tables import as_text, tests_as_text, write_tables


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Say what the command takes."""
    parser.add_argument(
        "recipes", nargs="+", metavar="RECIPE", help="names of recipes or YAML files, one for each model"
    )
    parser.add_argument(
        "overrides", nargs="*", metavar="section.key=value", help="values for all runs; those of dcls leave stock alone"
    )
    parser.add_argument("--variants", nargs="+", metavar="NAME", help="of the recipes (default: all that they have)")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2], metavar="N", help="(default: 0 1 2)")
    parser.add_argument("--folder", type=Path, help="for runs and results (default: runs/compare-RECIPE)")
    parser.add_argument("--devices", type=int, metavar="N", help="GPUs to use (default: all)")
    parser.add_argument(
        "--jobs", type=int, default=1, metavar="N", help="runs side by side on each GPU, or on the CPU (default: 1)"
    )
    parser.add_argument("--dry-run", action="store_true", help="say what would be done, and do nothing")


def run(arguments: argparse.Namespace) -> int:
    """Train what is not there yet, then write and print the comparison."""
    folder = arguments.folder or Path("runs", "compare-" + "-".join(Path(name).stem for name in arguments.recipes))
    jobs = plan(folder, arguments.recipes, arguments.variants, arguments.seeds, arguments.overrides)
    todo = [job for job in jobs if not is_done(job)]
    slots = make_slots(jobs[0].recipe, arguments.devices, arguments.jobs)
    runs = "1 run" if len(jobs) == 1 else f"{len(jobs)} runs"
    print(f"{runs} in {folder}: {len(jobs) - len(todo)} complete, {len(todo)} to do, {len(slots)} at a time")
    if arguments.dry_run:
        print("\n".join(f"  {job.name}: {'to do' if job in todo else 'complete'}" for job in jobs))
        return 0
    folder.mkdir(parents=True, exist_ok=True)
    record(folder, jobs)
    try:
        failed = run_jobs(todo, slots, _train) if todo else []
    except KeyboardInterrupt:
        print("\nstopped; the same command goes on from here")
        return 130
    conclude(folder)
    for job in failed:
        print(f"FAILED: {job.name}, see {job.log}")
    return 1 if failed else 0


def plan(
    folder: Path, recipes: Sequence[str], chosen: Sequence[str] | None, seeds: Sequence[int], overrides: Sequence[str]
) -> list[Job]:
    """A job for each recipe, variant and seed; folders that hold other runs are refused."""
    for word in overrides:
        if word.startswith(("seed=", "variant=")):
            raise ValueError(f"seeds and variants are given by --seeds and --variants, got {word}")
    for what, given in (("--seeds", seeds), ("--variants", chosen or ()), ("recipes", recipes)):
        if len(set(given)) < len(given):
            raise ValueError(f"{what} must be different ones, got {' '.join(map(str, given))}")
    jobs = []
    for name in recipes:
        wanted: list[str | None] = [*(chosen or variants(name))]
        for variant in wanted or [None]:
            plain = load_recipe(name, variant=variant).dcls is None
            words = [word for word in overrides if not (plain and word.startswith("dcls."))]
            for seed in seeds:
                recipe = load_recipe(name, [*words, f"seed={seed}"], variant)
                place = run_folder(folder, recipe.name, recipe.variant, seed)
                jobs.append(Job(place.relative_to(folder).as_posix(), recipe, place))
    if len({job.name for job in jobs}) < len(jobs):
        raise ValueError(f"recipes must have names of their own, got {', '.join(recipes)}")
    for job in jobs:
        _check_folder(job)
    return jobs


def _check_folder(job: Job) -> None:
    if different := other_run(job.folder, job.recipe):
        raise ValueError(f"{job.folder} holds a run of another recipe: {'; '.join(different)}; choose another --folder")


def is_done(job: Job) -> bool:
    """Whether the run of a job is complete."""
    return read_run(job.folder, job.recipe.name, job.recipe.variant, job.recipe.seed) is not None


def _train(recipe: Recipe, folder: Path, resume: bool) -> None:
    from .run import train

    train(recipe, folder, resume)


def record(folder: Path, jobs: Sequence[Job]) -> None:
    """Write down what is compared, by which command and on what, for the report and for ``torchdcls plot``."""
    packages = ("torch", "timm", "lightning", "numpy", "scipy")
    entries = {
        "command": shlex.join(["torchdcls", *sys.argv[1:]]),
        "time": datetime.datetime.now().astimezone().strftime("%Y-%m-%d %H:%M %Z"),
        "runs": [[job.recipe.name, job.recipe.variant, job.recipe.seed] for job in jobs],
        "versions": {"python": platform.python_version(), "torchdcls": __version__}
        | {name: importlib.metadata.version(name) for name in packages},
        "hardware": _hardware(),
    }
    (folder / RECORD).write_text(json.dumps(entries, indent=1) + "\n")


def _hardware() -> str:
    import torch

    cores = f"{len(os.sched_getaffinity(0)) if hasattr(os, 'sched_getaffinity') else os.cpu_count()} CPU cores"
    gpus = (
        [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())] if torch.cuda.is_available() else []
    )
    kinds = [f"{gpus.count(name)} x {name}" for name in dict.fromkeys(gpus)]
    return ", ".join([*kinds, f"{cores} ({_processor()})", platform.platform(terse=True)])


def _processor() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def conclude(folder: Path) -> None:
    """Write tables and report of the complete runs, and print the table and where the report is."""
    runs = read_comparison(folder)
    if not runs:
        print("no run is complete, so there is nothing to report")
        return
    write_tables(folder, runs)
    print("\n" + as_text(make_table(runs)))
    for recipe, members in by_recipe(runs).items():
        if text := tests_as_text(find_differences(members)):
            print(f"\nStudent's t-tests, {recipe}\n{text}")
        for sentence in notes(values_by_variant(members, TESTED[0])):
            print(f"- {sentence}")
    print(f"\ntables: {folder / 'table.md'}, {folder / 'results.csv'}\nreport: {write_report(folder, runs)}")

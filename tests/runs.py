"""Run folders without training: what a run leaves, from made-up numbers, and stand-ins for training itself."""

import csv
import json
import math
import os
import signal
import subprocess
import sys
import time
import zlib

import numpy as np

from torchdcls.training.recipe import load_recipe
from torchdcls.training.results import run_folder

LOSS = {"stock": 0.50, "bilinear": 0.40, "triangle": 0.30, "gauss": 0.20}


def numbers_of(recipe):
    """Loss and top-1 by variant and seed, always the same."""
    loss = LOSS[recipe.variant] + 0.01 * recipe.seed
    return loss, 100 - 40 * loss


def leave_run(recipe, folder, resume=True):
    """Write what a run of ``recipe`` with two epochs leaves in ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    recipe.save(folder / "recipe.yaml")
    loss, top1 = numbers_of(recipe)
    stock = recipe.dcls is None
    with (folder / "metrics.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["epoch", "step", "train_loss", "val_top1", "position_movement"])
        writer.writerows([[1, 80, 2 * loss, top1 / 2, ""], [2, 160, loss, top1, ""]])
    if not stock:
        random = np.random.default_rng(zlib.crc32(recipe.variant.encode()))
        shape = (3, 2, 8, 1, 5)
        arrays = {f"stages.{i}.blocks.0.conv_dw.position": random.normal(0, 0.5, shape).cumsum(0) for i in range(2)}
        if recipe.interpolation != "bilinear":
            arrays |= {name.replace("position", "sigma"): np.abs(history) for name, history in arrays.items()}
        np.savez(folder / "positions.npz", epochs=np.arange(3), **{k: v.astype("float32") for k, v in arrays.items()})
    summary = {
        "variant": recipe.variant,
        "seed": recipe.seed,
        "model": recipe.model.name,
        "interpolation": recipe.interpolation,
        "size": 7 if stock else 15,
        "count": 49 if stock else 5,
        "parameters": 1234567,
        "epochs": 2,
        "train_loss": loss,
        "val_loss": loss + 0.1,
        "val_top1": top1,
        "val_top5": None if recipe.seed == 9 else 99.0,
        "seconds": 61.0,
        "complete": True,
    }
    (folder / "summary.json").write_text(json.dumps(summary))


def leave_comparison(folder, variants=tuple(LOSS), seeds=(0, 1, 2), planned=None):
    """Write the folders of a comparison of ``digits``, and its record."""
    for variant in variants:
        for seed in seeds:
            leave_run(load_recipe("digits", [f"seed={seed}"], variant), run_folder(folder, "digits", variant, seed))
    record = {
        "command": "torchdcls compare digits",
        "time": "2025-01-01 12:00 UTC",
        "runs": planned or [["digits", variant, seed] for variant in variants for seed in seeds],
        "versions": {"torchdcls": "0.1.0", "torch": "2.8"},
        "hardware": "a machine with <angle brackets>",
    }
    (folder / "comparison.json").write_text(json.dumps(record))
    return folder


def train_or_fail(recipe, folder, resume):
    """Stand-in for training: leaves the run, with what the process was given; the triangle fails, bilinear dies."""
    print(f"gpus {os.environ.get('CUDA_VISIBLE_DEVICES')}, threads {recipe.machine.threads}, resume {resume}")
    if recipe.variant == "triangle":
        raise ValueError("the triangle cannot be trained")
    if recipe.variant == "bilinear":
        os.kill(os.getpid(), signal.SIGKILL)
    leave_run(recipe, folder)


def train_forever(recipe, folder, resume):
    """Stand-in for training that has a process of its own, says who they are, and does not end."""
    helper = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"])
    aside = folder.with_name(folder.name + ".writing")
    aside.write_text(f"{os.getpid()} {helper.pid}")
    aside.replace(folder.with_name(folder.name + ".pids"))
    time.sleep(300)


def wait_for(condition, seconds=30.0):
    """Wait until ``condition()`` holds, and return what it gave."""
    until = time.monotonic() + seconds
    while not (found := condition()):
        if time.monotonic() > until:
            raise TimeoutError(f"{condition} did not hold within {seconds} s")
        time.sleep(0.02)
    return found


def is_running(pid):
    """Whether a process runs: one that ended and waits to be collected does not."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def standard_error(values):
    """By the textbook, with loops."""
    mean = sum(values) / len(values)
    return math.sqrt(sum((value - mean) ** 2 for value in values) / (len(values) - 1)) / math.sqrt(len(values))

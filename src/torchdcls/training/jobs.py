"""Runs side by side, each in a process of its own: one that fails takes no other down.

A process is forked from a server that has Lightning and timm loaded already, which saves seconds for every
run. It dies with the program that started it, however that ends; what it was doing is resumed by the next call.
"""

import contextlib
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from multiprocessing.connection import wait
from multiprocessing.context import SpawnContext, SpawnProcess
from pathlib import Path
from typing import cast

from .recipe import Recipe

PRELOADED = ["torchdcls.training.run"]  # by the server that processes are forked from
Train = Callable[[Recipe, Path, bool], None]


@dataclass(frozen=True)
class Job:
    """A run to be done.

    Attributes:
        name: for messages.
        recipe: what to run.
        folder: where; its log is beside it.
    """

    name: str
    recipe: Recipe
    folder: Path

    @property
    def log(self) -> Path:
        """Everything that the run prints."""
        return self.folder.with_name(self.folder.name + ".log")


@dataclass(frozen=True)
class Slot:
    """A place where one run at a time can be done.

    Attributes:
        gpus: what the run finds in ``CUDA_VISIBLE_DEVICES``, or None on another kind of device.
        threads: that torch computes with, or None for its own choice.
    """

    gpus: str | None = None
    threads: int | None = None


def make_slots(recipe: Recipe, devices: int | None, jobs: int) -> list[Slot]:
    """The slots for runs of ``recipe`` on this machine.

    Args:
        recipe: ``machine.accelerator`` says on what a run is done, ``machine.devices`` on how many of it.
        devices: GPUs to use, None for all that are visible.
        jobs: runs side by side on each GPU, or group of GPUs; on a CPU, the processes that share its cores.
    """
    if jobs < 1:
        raise ValueError(f"--jobs must be at least 1, got {jobs}")
    if recipe.machine.nodes > 1:
        raise ValueError(
            f"runs are compared on one machine, got machine.nodes = {recipe.machine.nodes}; see torchdcls train"
        )
    gpus = _visible_gpus() if recipe.machine.accelerator in ("auto", "gpu") else []
    if not gpus:
        if recipe.machine.accelerator == "gpu":
            raise ValueError("machine.accelerator is gpu, and no GPU is visible to torch on this machine")
        if devices is not None:
            raise ValueError(
                f"--devices counts GPUs, got {devices} where runs are done on the CPU; --jobs is for those"
            )
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        processes = jobs * max(1, recipe.machine.devices)
        threads = recipe.machine.threads or (None if processes == 1 else max(1, cores // processes))
        return [Slot(threads=threads)] * jobs
    if devices is not None and not 1 <= devices <= len(gpus):
        raise ValueError(f"--devices must be from 1 to the {len(gpus)} GPUs that torch sees, got {devices}")
    gpus = gpus[:devices]
    each = len(gpus) if recipe.machine.devices == -1 else recipe.machine.devices
    if each > len(gpus):
        raise ValueError(f"a run takes machine.devices = {each} GPUs, and there are {len(gpus)} to use")
    groups = [",".join(gpus[i : i + each]) for i in range(0, len(gpus) - each + 1, each)]
    return [Slot(gpus=group, threads=recipe.machine.threads) for _ in range(jobs) for group in groups]


def _visible_gpus() -> list[str]:
    import torch

    given = os.environ.get("CUDA_VISIBLE_DEVICES")
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    return given.split(",")[:count] if given else [str(index) for index in range(count)]


def run_jobs(jobs: Sequence[Job], slots: Sequence[Slot], train: Train) -> list[Job]:
    """Do all jobs, as many side by side as there are slots, tell how they end, and return those that failed.

    On an exception, Ctrl-C among them, the running ones are stopped before it goes on.
    """
    context = _context()
    waiting, free = list(reversed(jobs)), list(reversed(slots))
    running: dict[SpawnProcess, tuple[Job, Slot, float]] = {}
    failed: list[Job] = []
    try:
        while waiting or running:
            while waiting and free:
                job, slot = waiting.pop(), free.pop()
                job.folder.parent.mkdir(parents=True, exist_ok=True)
                process = context.Process(target=_work, args=(train, job, slot), name=job.name)
                process.start()
                running[process] = (job, slot, time.monotonic())
            _show([job for job, *_ in running.values()])
            wait([process.sentinel for process in running], timeout=1.0)
            for process in list(running):
                status = process.exitcode
                if status is None:
                    continue
                job, slot, began = running.pop(process)
                free.append(slot)
                ended = f"[{len(jobs) - len(waiting) - len(running)}/{len(jobs)}] {job.name}:"
                _show([])
                if status == 0:
                    print(f"{ended} done in {duration(time.monotonic() - began)}", flush=True)
                else:
                    failed.append(job)
                    print(f"{ended} FAILED, {_reason(job, status)}", flush=True)
    finally:
        _show([])
        _stop(list(running))
    return failed


def _context() -> SpawnContext:
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    return cast(SpawnContext, context)


def _work(train: Train, job: Job, slot: Slot) -> None:
    """What the process of one run does."""
    if hasattr(os, "setsid"):
        os.setsid()  # Ctrl-C reaches the program that waits, which then stops this group as a whole
    threading.Thread(target=_die_with_parent, daemon=True).start()
    with job.log.open("a", buffering=1) as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    print(time.strftime("--- %Y-%m-%d %H:%M:%S"))
    if slot.gpus is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = slot.gpus
    machine = replace(job.recipe.machine, progress=False, threads=slot.threads or job.recipe.machine.threads)
    recipe = replace(job.recipe, machine=machine)
    if machine.devices == 1:
        train(recipe, job.folder, True)
    else:  # to start the further ranks Lightning gives the command line of its process again, so it must be this run's
        saved = job.log.with_suffix(".yaml")
        recipe.save(saved)
        words = ["train", str(saved), "--folder", str(job.folder), "--resume"]
        sys.exit(subprocess.call([sys.executable, "-m", "torchdcls", *words]))


def _die_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        _kill(os.getpid())


def _kill(pid: int) -> None:
    """End a run with all processes that it started: loaders of images, and ranks on further devices."""
    with contextlib.suppress(ProcessLookupError):
        if hasattr(os, "killpg") and os.getpgid(pid) == pid:
            os.killpg(pid, signal.SIGKILL)
        else:  # it has no group of its own yet, or, on Windows, ever
            os.kill(pid, getattr(signal, "SIGKILL", signal.SIGTERM))


def _stop(processes: Sequence[SpawnProcess]) -> None:
    """End processes at once: a run can be resumed from wherever it is killed."""
    for process in processes:
        if process.pid is not None:
            _kill(process.pid)
    for process in processes:
        process.join()


def _reason(job: Job, exitcode: int) -> str:
    """Why a run ended, in a few words: its last line, or the signal that killed it."""
    if exitcode < 0:
        return f"killed by {signal.Signals(-exitcode).name}"
    lines = [line.strip() for line in job.log.read_text(errors="replace").splitlines()]
    return next((line for line in reversed(lines) if line), f"exit status {exitcode}")


def _show(running: Sequence[Job]) -> None:
    """On a terminal, one line that says how far the running jobs are, in place of the one before."""
    if sys.stderr.isatty():
        done = [f"{job.name} {_epochs_done(job.folder)}/{job.recipe.epochs}" for job in running]
        line = "epochs done: " + ", ".join(done) if done else ""
        print(f"\r\x1b[K{line[: shutil.get_terminal_size().columns - 1]}", end="", file=sys.stderr, flush=True)


def _epochs_done(folder: Path) -> int:
    try:
        return len((folder / "metrics.csv").read_text().splitlines()) - 1
    except FileNotFoundError:
        return 0


def duration(seconds: float) -> str:
    """Seconds in words.

    >>> duration(42.4), duration(754), duration(9000)
    ('42 s', '12 min 34 s', '2 h 30 min')
    """
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s" if minutes else f"{rest} s"

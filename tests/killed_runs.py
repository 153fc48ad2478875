"""Runs that kill themselves at a chosen point; a script for test_training_faults.py.

    python killed_runs.py RECIPE FOLDER

Imports once and forks a process for each run: first one that is never interrupted, then, for each point, one that
ends there by SIGKILL and one that resumes it; last, some that are asked to stop, and one that resumes each.
"""

import os
import signal
import sys
import traceback
from pathlib import Path

import torchdcls.training.checkpoints as checkpoints
import torchdcls.training.history as history
from torchdcls.training.module import Training
from torchdcls.training.pictures import Digits
from torchdcls.training.recipe import load_recipe
from torchdcls.training.run import train


def kill_at_call(owner, name, number, after=False):
    """Replace ``owner.name`` by one whose call of that number ends the process, before or after it is made."""
    original, calls = getattr(owner, name), []

    def replacement(*arguments, **named):
        calls.append(name)
        if len(calls) == number and not after:
            os.kill(os.getpid(), signal.SIGKILL)
        result = original(*arguments, **named)
        if len(calls) == number:
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    setattr(owner, name, replacement)


# 3 epochs of 5 updates, each of 2 steps; checkpoints at the start, at updates 2 and 4 of an epoch, at its end.
POINTS = {
    "at the first step": lambda: kill_at_call(Training, "training_step", 1),
    "in an epoch, within an update": lambda: kill_at_call(Training, "training_step", 16),
    "in an epoch, at a checkpoint": lambda: kill_at_call(checkpoints, "write_checkpoint", 3, after=True),
    "while a checkpoint is written": lambda: kill_at_call(checkpoints._Hashed, "write", 2000),
    "between the two names of a checkpoint": lambda: kill_at_call(checkpoints.os, "replace", 12),
    "in validation": lambda: kill_at_call(Training, "validation_step", 7),
    "between an epoch and its checkpoint": lambda: kill_at_call(history.History, "write", 3, after=True),
    "after the checkpoint of an epoch": lambda: kill_at_call(checkpoints.Checkpoints, "on_train_epoch_end", 2, True),
}


def stop_at_step(number, step=16):
    """Send the signal of that number to the process itself in a step of the second epoch."""
    if number == signal.SIGINT:  # which a process in the background ignores, and so do its children
        signal.signal(number, signal.default_int_handler)
    original, calls = Training.training_step, []

    def replacement(*arguments):
        calls.append(number)
        if len(calls) == step:
            os.kill(os.getpid(), number)
        return original(*arguments)

    Training.training_step = replacement


STOPS = {"by Ctrl-C": signal.SIGINT, "by SIGTERM": signal.SIGTERM}


def in_child(work):
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            work()
            status = 0
        except SystemExit as stop:
            status = stop.code
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def main(recipe_file, folder):
    recipe = load_recipe(recipe_file, ["machine.accumulate=2"])
    # The loaders of a resumed run may have other workers than those of the interrupted one.
    resumed = load_recipe(recipe_file, ["machine.accumulate=2", "machine.workers=2"])
    Digits(training=True)  # read once
    assert in_child(lambda: train(recipe, folder / "whole")) == 0
    for number, (point, prepare) in enumerate(POINTS.items()):

        def killed(prepare=prepare, point=point):
            prepare()
            train(recipe, folder / point)

        status = in_child(killed)
        assert status == -signal.SIGKILL, (point, status)
        (folder / point / "killed").write_text("\n".join(p.name for p in (folder / point / "checkpoints").iterdir()))
        again = resumed if number == 1 else recipe
        assert in_child(lambda again=again, point=point: train(again, folder / point, resume=True)) == 0, point
    for point, number in STOPS.items():

        def stopped(point=point, number=number):
            stop_at_step(number)
            train(recipe, folder / point)

        assert in_child(stopped) == 128 + number, point
        assert in_child(lambda point=point: train(recipe, folder / point, resume=True)) == 0, point


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))

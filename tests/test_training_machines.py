"""Two processes of DDP give what one process gives with the same batches."""

import os
import subprocess
import sys

import pytest
import torch
from tests.test_training import TINY
from tests.test_training_faults import rows
from tests.test_training_run import PLAIN

from torchdcls.training.checkpoints import read_checkpoint
from torchdcls.training.recipe import load_recipe
from torchdcls.training.run import train

# 37 images to validate are three batches, the last of 5, which two processes cannot halve.
WORDS = [*PLAIN, "trainer.ema=0.9", "trainer.epochs=2", "data.val_subset=37", "machine.save_every=2"]
COMPUTED = ("train_loss", "val_loss", "val_top1", "val_top5", "position_movement", "width_mean")


TRAIN = ["-m", "torchdcls", "train", str(TINY), *WORDS, "--devices", "2"]
PYTHON = [sys.executable, "-W", "error::UserWarning:torchdcls"]
JOB = {"SLURM_JOB_NAME": "train", "SLURM_NNODES": "1", "SLURM_NODEID": "0"}


def start_by_itself(words, environment):
    return [run_process([*PYTHON, *TRAIN, *words], environment)]


def start_alone_in_a_job(words, environment):
    return start_by_itself(words, {**environment, **JOB, "SLURM_JOB_ID": "1", "SLURM_NTASKS": "1", "SLURM_PROCID": "0"})


def start_by_torchrun(words, environment):
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    return [run_process([*PYTHON, *launcher, *TRAIN, *words], environment)]


def start_by_srun(words, environment):
    """What srun sets for each of its two tasks; Lightning makes a port of the job's number."""
    counts = dict.fromkeys(("SLURM_NTASKS", "SLURM_NTASKS_PER_NODE", "SLURM_STEP_NUM_TASKS"), "2")
    tasks = {**environment, **JOB, **counts, "SLURM_JOB_ID": str(os.getpid())}
    ranks = [{**tasks, "SLURM_PROCID": str(rank), "SLURM_LOCALID": str(rank)} for rank in range(2)]
    return [run_process([*PYTHON, *TRAIN, *words], each) for each in ranks]


def run_process(command, environment):
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env=environment)


STARTS = [start_by_itself, start_alone_in_a_job, start_by_torchrun, start_by_srun]


@pytest.fixture(scope="module")
def one(tmp_path_factory):
    """The run of a single process."""
    folder = tmp_path_factory.mktemp("one")
    train(load_recipe(TINY, WORDS), folder)
    return folder


@pytest.mark.parametrize("start", STARTS, ids=[start.__name__.removeprefix("start_") for start in STARTS])
def test_two_processes_are_one(start, one, tmp_path):
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MASTER_ADDR": "127.0.0.1", "GLOO_SOCKET_IFNAME": "lo"}
    processes = start(["--folder", str(tmp_path / "two")], environment)
    results = [process.communicate(timeout=300) for process in processes]
    assert [process.returncode for process in processes] == [0] * len(processes), results[0][1][-3000:]
    said = "".join(out for out, _ in results)
    assert "8 images an update = 2 x 1 x 4" in said
    assert said.count("images to train on") == 1, "one process speaks"
    for ours, theirs in zip(rows(tmp_path / "two"), rows(one), strict=True):
        assert (ours["epoch"], ours["step"], ours["lr_decay"]) == (theirs["epoch"], theirs["step"], theirs["lr_decay"])
        for name in COMPUTED:
            assert float(ours[name]) == pytest.approx(float(theirs[name]), rel=1e-3), name
    found, expected = (read_checkpoint(folder / "checkpoints" / "last.ckpt") for folder in (tmp_path / "two", one))
    for name, tensor in expected["state_dict"].items():
        torch.testing.assert_close(found["state_dict"][name], tensor, rtol=1e-2, atol=1e-4, msg=name)

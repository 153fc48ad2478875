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


def test_two_processes_are_one(tmp_path):
    command = [sys.executable, "-W", "error::UserWarning:torchdcls", "-m", "torchdcls", "train", str(TINY), *WORDS]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MASTER_ADDR": "127.0.0.1", "GLOO_SOCKET_IFNAME": "lo"}
    result = subprocess.run(
        [*command, "--devices", "2", "--folder", str(tmp_path / "two")],
        capture_output=True,
        text=True,
        env=environment,
        timeout=300,
    )
    assert result.returncode == 0, result.stderr[-3000:]
    assert "8 images an update = 2 x 1 x 4" in result.stdout
    assert result.stdout.count("images to train on") == 1, "one process speaks"
    train(load_recipe(TINY, WORDS), tmp_path / "one")
    for ours, theirs in zip(rows(tmp_path / "two"), rows(tmp_path / "one"), strict=True):
        assert (ours["epoch"], ours["step"], ours["lr_decay"]) == (theirs["epoch"], theirs["step"], theirs["lr_decay"])
        for name in COMPUTED:
            assert float(ours[name]) == pytest.approx(float(theirs[name]), rel=1e-3), name
    two, one = (read_checkpoint(tmp_path / name / "checkpoints" / "last.ckpt") for name in ("two", "one"))
    for name, tensor in one["state_dict"].items():
        torch.testing.assert_close(two["state_dict"][name], tensor, rtol=1e-2, atol=1e-4, msg=name)

"""What goes wrong in hours of training: kill -9, damaged files, full disks, losses that are not finite."""

import csv
import errno
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from torchdcls.training import checkpoints
from torchdcls.training.checkpoints import (
    DamagedCheckpointError,
    check_space,
    newest_checkpoint,
    read_checkpoint,
    write_checkpoint,
)
from torchdcls.training.module import Training
from torchdcls.training.recipe import load_recipe
from torchdcls.training.run import train

HERE = Path(__file__).parent
RECIPE = HERE / "training_recipe.yaml"
CLOCKED = {"images_per_second", "seconds"}  # the only things that a resumed run does not repeat


def same(first, second):
    """Equal to the bit, clocks aside."""
    if isinstance(first, dict):
        assert first.keys() == second.keys()
        for key in first.keys() - CLOCKED:
            same(first[key], second[key])
    elif isinstance(first, list | tuple):
        assert len(first) == len(second)
        for pair in zip(first, second, strict=True):
            same(*pair)
    elif isinstance(first, torch.Tensor):
        assert torch.equal(first, second)
    else:
        assert first == second


def rows(folder):
    with (folder / "metrics.csv").open() as file:
        return [{k: v for k, v in row.items() if k not in CLOCKED} for row in csv.DictReader(file)]


def test_a_killed_run_goes_on_to_the_bit(tmp_path):
    script = [sys.executable, "-W", "error", str(HERE / "killed_runs.py"), str(RECIPE), str(tmp_path)]
    result = subprocess.run(script, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr[-3000:]
    whole = tmp_path / "whole"
    resumed = [folder for folder in tmp_path.iterdir() if folder != whole]
    assert len(resumed) == 8 + 2
    for number, point in (("SIGINT", "by Ctrl-C"), ("SIGTERM", "by SIGTERM")):
        last = tmp_path / point / "checkpoints" / "last.ckpt"
        assert f"stopped by {number}; --resume goes on from {last}" in result.stderr
    expected = read_checkpoint(whole / "checkpoints" / "last.ckpt")
    # Otherwise it would be equal without having been resumed, or without anything random in it.
    assert expected["global_step"] == 15
    assert expected["loops"]["fit_loop"]["epoch_progress"]["current"]["processed"] == 3
    assert any(name.startswith("average.") for name in expected["state_dict"])
    assert len(expected["optimizer_states"][0]["state"]) > 10
    for folder in resumed:
        found = read_checkpoint(folder / "checkpoints" / "last.ckpt")
        own = ("recipe", "loops")  # the number of workers, Lightning's counts of what it did in this process
        same(*({key: entry for key, entry in each.items() if key not in own} for each in (found, expected)))
        assert rows(folder) == rows(whole)
        assert [row["epoch"] for row in rows(folder)] == ["1", "2", "3"]
        with np.load(folder / "positions.npz") as ours, np.load(whole / "positions.npz") as theirs:
            assert ours["epochs"].tolist() == [0, 1, 2, 3]
            for name in theirs.files:
                np.testing.assert_array_equal(ours[name], theirs[name])
    left = {folder.parent.name: folder.read_text().split() for folder in tmp_path.glob("*/killed")}
    assert "last.ckpt.writing" in left["while a checkpoint is written"]
    assert "last.ckpt" not in left["between the two names of a checkpoint"]


CONTENT = {"weight": torch.arange(1000.0), "step": 3, "rows": [{"loss": 0.5, "none": None}]}


def test_checkpoints_are_whole_or_not_there(tmp_path):
    path = tmp_path / "last.ckpt"
    write_checkpoint(CONTENT, path)
    write_checkpoint({**CONTENT, "step": 4}, path)
    assert read_checkpoint(path)["step"] == 4
    assert read_checkpoint(tmp_path / "previous.ckpt")["step"] == 3
    assert sorted(file.name for file in tmp_path.iterdir()) == ["last.ckpt", "previous.ckpt"]
    assert torch.load(path, weights_only=True)["step"] == 4, "torch reads the file as it is"


@pytest.mark.parametrize(
    "spoil",
    [
        lambda content: content[: len(content) // 2],
        lambda content: content[:-1],
        lambda content: b"",
        lambda content: content + b"x",
        lambda content: content[:1500] + bytes([content[1500] ^ 1]) + content[1501:],
        lambda content: content[:-3] + bytes([content[-3] ^ 128]) + content[-2:],
    ],
    ids=["half", "a byte short", "empty", "a byte more", "a bit flipped", "a bit of the digest flipped"],
)
def test_damage_is_found_and_the_one_before_taken(tmp_path, spoil):
    path = tmp_path / "last.ckpt"
    write_checkpoint(CONTENT, path)
    write_checkpoint({**CONTENT, "step": 4}, path)
    path.write_bytes(spoil(path.read_bytes()))
    with pytest.raises(DamagedCheckpointError, match=r"checkpoint .*last.ckpt is damaged"):
        read_checkpoint(path)
    with pytest.warns(UserWarning, match=r"last.ckpt is damaged.*going on from .*previous.ckpt"):
        found = newest_checkpoint(tmp_path)
    assert read_checkpoint(found)["step"] == 3
    found.write_bytes(b"")
    with pytest.raises(DamagedCheckpointError, match=r"last.ckpt is damaged.*previous.ckpt is damaged.*no other"):
        newest_checkpoint(tmp_path)
    write_checkpoint(CONTENT, tmp_path / "best.ckpt")
    with pytest.raises(DamagedCheckpointError, match=r"copy .*best.ckpt to .*last.ckpt to go on from there, or begin"):
        newest_checkpoint(tmp_path)


def test_a_damaged_checkpoint_does_not_take_the_place_of_a_good_one(tmp_path):
    path = tmp_path / "last.ckpt"
    for step in (3, 4):
        write_checkpoint({**CONTENT, "step": step}, path)
    path.write_bytes(b"")
    write_checkpoint({**CONTENT, "step": 5}, path)
    assert [read_checkpoint(tmp_path / name)["step"] for name in ("last.ckpt", "previous.ckpt")] == [5, 3]


def test_checkpoints_hold_no_code(tmp_path):
    path = tmp_path / "last.ckpt"
    write_checkpoint({"code": Path("x")}, path)
    with pytest.raises(Exception, match="Weights only load failed"):
        read_checkpoint(path)


def fill_disk(monkeypatch, after):
    """Make the disk full after so many bytes of a checkpoint."""
    written = []

    def write(self, part, original=checkpoints._Hashed.write):
        written.append(len(part))
        if sum(written) > after:
            self.file = FullDisk()
        return original(self, part)

    monkeypatch.setattr(checkpoints._Hashed, "write", write)


class FullDisk:
    def write(self, part):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def flush(self):
        pass


def test_a_full_disk_leaves_the_last_good_checkpoint(tmp_path, monkeypatch):
    path = tmp_path / "last.ckpt"
    write_checkpoint(CONTENT, path)
    fill_disk(monkeypatch, after=2000)
    with pytest.raises(OSError, match=r"could not be written: No space left.*last good one is .*last.ckpt.*--resume"):
        write_checkpoint({**CONTENT, "step": 4}, path)
    assert read_checkpoint(path)["step"] == 3
    assert [file.name for file in tmp_path.iterdir()] == ["last.ckpt"]


def test_too_little_space_is_said_at_the_start(tmp_path, monkeypatch):
    check_space(tmp_path, 1, files=3)
    with pytest.raises(OSError, match=r"room for 3 checkpoints of 1,000,000,000 MB, got .* MB; free some"):
        check_space(tmp_path, 10**15, files=3)
    monkeypatch.setattr("torchdcls.training.run.checkpoint_size", lambda recipe, network: 10**15)
    with pytest.raises(OSError, match="room for 4 checkpoints"):
        train(load_recipe(RECIPE), tmp_path / "run")


def test_a_loss_that_is_not_finite_stops_the_run_and_names_the_last_good_checkpoint(tmp_path, monkeypatch):
    original = torch.nn.functional.cross_entropy
    steps = []

    def explode(logits, *arguments, **named):
        steps.extend([1] * logits.requires_grad)
        loss = original(logits, *arguments, **named)
        return loss * float("nan") if len(steps) == 8 else loss

    monkeypatch.setattr("torchdcls.training.module.F.cross_entropy", explode)
    with pytest.raises(FloatingPointError, match=r"loss became nan in step 8; .*last good checkpoint is .*last.ckpt"):
        train(load_recipe(RECIPE), tmp_path)
    good = read_checkpoint(tmp_path / "checkpoints" / "last.ckpt")
    assert good["global_step"] == 6
    assert all(tensor.isfinite().all() for tensor in good["state_dict"].values())


def test_the_first_loss_that_is_not_finite_is_named_however_late_it_is_looked_at(monkeypatch):
    monkeypatch.setattr(Training, "log", lambda *_, **__: None)
    module = Training(load_recipe(RECIPE), torch.nn.Linear(1, 1), None, 10)
    module.check_finite()
    for step, loss in enumerate((1.0, float("nan"), 2.0, float("inf")), start=1):
        module.steps_done = step
        module._note_loss(torch.tensor(loss), count=4)
    with pytest.raises(FloatingPointError, match="became nan in step 2"):
        module.check_finite()


def test_weights_that_are_not_finite_are_not_saved(tmp_path, monkeypatch):
    original = Training.training_step

    def poison(self, batch, batch_idx):
        loss = original(self, batch, batch_idx)
        return loss * float("inf") if self.steps_done == 4 else loss  # only the gradient

    monkeypatch.setattr(Training, "training_step", poison)
    with pytest.raises(FloatingPointError, match=r"parameter is not finite after update 4; .*last good checkpoint"):
        train(load_recipe(RECIPE, ["optimizer.clip=null"]), tmp_path)
    assert read_checkpoint(tmp_path / "checkpoints" / "last.ckpt")["global_step"] == 2
    monkeypatch.undo()
    train(load_recipe(RECIPE, ["optimizer.clip=null"]), tmp_path, resume=True)


def test_positions_that_are_not_finite_stop_the_run(tmp_path, monkeypatch):
    original = Training.training_step

    def poison(self, batch, batch_idx):
        if self.steps_done == 2:
            next(p for name, p in self.network.named_parameters() if "position" in name).data.fill_(float("nan"))
        return original(self, batch, batch_idx)

    monkeypatch.setattr(Training, "training_step", poison)
    with pytest.raises(FloatingPointError, match=r"position must be finite.*last good checkpoint is .*last.ckpt"):
        train(load_recipe(RECIPE), tmp_path)


def test_another_training_set_is_not_gone_on_with(tmp_path, monkeypatch):
    monkeypatch.setattr(Training, "close_epoch", lambda self: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        train(load_recipe(RECIPE), tmp_path)
    monkeypatch.undo()
    monkeypatch.setattr("torchdcls.training.data.Samples.__len__", lambda self: 40)
    with pytest.raises(ValueError, match="must hold as many images as when the run began, 44, found 40"):
        train(load_recipe(RECIPE), tmp_path, resume=True)


def test_another_number_of_steps_to_an_update_is_not_gone_on_with(tmp_path, monkeypatch):
    words = ["trainer.batch_size=16", "machine.accumulate=2"]
    monkeypatch.setattr(Training, "close_epoch", lambda self: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        train(load_recipe(RECIPE, words), tmp_path)
    monkeypatch.undo()
    with pytest.raises(ValueError, match=r"machine.accumulate must be what it was when the run began, 2, got 1"):
        train(load_recipe(RECIPE, words[:1]), tmp_path, resume=True)


def test_a_run_that_never_began_leaves_its_folder_free(tmp_path):
    with pytest.raises(ValueError, match=r"schedule.name must be one of"):
        train(load_recipe(RECIPE, ["schedule.name=cosin"]), tmp_path)
    train(load_recipe(RECIPE, ["trainer.epochs=1"]), tmp_path)

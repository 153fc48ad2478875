"""Evaluate and export: three kinds of files, one answer."""

import dataclasses
import json
import shutil

import pytest
import torch
from scipy.stats import binomtest
from tests.test_training import TINY
from tests.test_training_data import recipe_of, write_folder
from tests.test_training_faults import rows
from torch import nn

from torchdcls import Conv2d, Dcls2d, fuse
from torchdcls.training import cli, export
from torchdcls.training.evaluate import evaluate, wilson
from torchdcls.training.module import count_hits
from torchdcls.training.recipe import change, load_recipe
from torchdcls.training.run import train
from torchdcls.training.trained import load_trained


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    train(load_recipe(TINY, ["trainer.epochs=1"]), folder)
    assert cli.main(["export", str(folder)]) == 0
    return folder


FILES = ["", "checkpoints/last.ckpt", "exported/model.safetensors", "exported/model.onnx"]


@pytest.mark.parametrize("file", FILES)
def test_every_file_gives_the_runs_own_numbers(folder, file, tmp_path, capsys):
    assert cli.main(["evaluate", str(folder / file), "--output", str(tmp_path / "out.json")]) == 0
    out = capsys.readouterr().out
    found = json.loads((tmp_path / "out.json").read_text())
    (row,) = rows(folder)
    assert found["images"] == 40
    assert found["loss"]["value"] == pytest.approx(float(row["val_loss"]), rel=1e-5)
    assert found["top-1"]["value"] == pytest.approx(float(row["val_top1"]))
    assert found["top-5"]["value"] == pytest.approx(float(row["val_top5"]))
    assert f"top-1   {float(row['val_top1']):.2f}% (95%: " in out
    assert "digits, 40 images" in out


def test_any_data_and_batch(folder, capsys):
    words = ["data.val_subset=33", "trainer.val_batch_size=10", "machine.workers=1"]
    assert cli.main(["evaluate", str(folder), *words]) == 0
    assert "33 images" in capsys.readouterr().out


def test_intervals():
    for hits, count in ((0, 10), (10, 10), (7, 9), (981, 1000)):
        interval, found = binomtest(hits, count).proportion_ci(method="wilson"), wilson(hits, count)
        assert (found.low, found.high) == pytest.approx((100 * interval.low, 100 * interval.high), abs=1e-4)
        assert found.value == pytest.approx(100 * hits / count)


def test_the_interval_of_the_loss(folder):
    trained = load_trained(folder)
    count, estimates = evaluate(trained)
    from torchdcls.training.data import open_set

    samples = open_set(trained.recipe, training=False)
    images, targets = (torch.stack([torch.as_tensor(samples[0, i][part]) for i in range(40)]) for part in range(2))
    with torch.no_grad():
        losses = count_hits(trained.predict(images), targets)[:, 0]
    half = 1.959964 * losses.std(correction=0) / count**0.5
    assert estimates["loss"].high - estimates["loss"].value == pytest.approx(half.item(), rel=1e-4)


def test_hits_are_counted_as_defined():
    logits = torch.eye(8)[:5] * 9 + torch.arange(8) * 0.1
    found = count_hits(logits, torch.tensor([0, 7, 0, -1, 4]))
    assert found[:, 1:].tolist() == [[1, 1, 1], [0, 1, 1], [0, 0, 1], [0, 0, 0], [1, 1, 1]]
    expected = nn.functional.cross_entropy(logits, torch.tensor([0, 7, 0, 0, 4]), reduction="none")
    expected[3] = 0
    torch.testing.assert_close(found[:, 0].float(), expected)
    assert count_hits(torch.zeros(2, 3), torch.tensor([0, 2]))[:, 2].tolist() == [1, 1], "fewer than five classes"


def test_exported_networks_are_plain(folder):
    trained, fused = load_trained(folder), load_trained(folder / "exported" / "model.safetensors")
    assert any(isinstance(part, Dcls2d) for part in trained.predict.modules())
    assert not any(isinstance(part, Dcls2d) for part in fused.predict.modules())
    assert fused.predict.stages[0].blocks[0].conv_dw.kernel_size == (7, 7)
    assert isinstance(fused.predict.stages[0].blocks[0].conv_dw, Conv2d)
    assert fused.recipe == trained.recipe
    assert fused.names == tuple("0123456789")
    images = torch.randn(5, 1, 16, 16)
    onnx = load_trained(folder / "exported" / "model.onnx")
    with torch.no_grad():
        for other in (fused, onnx):
            torch.testing.assert_close(other.predict(images), trained.predict(images), rtol=1e-4, atol=1e-5)


def test_a_checkpoint_is_exported_into_its_runs_folder(folder, tmp_path, capsys):
    run = tmp_path / "run"
    shutil.copytree(folder / "checkpoints", run / "checkpoints")
    assert cli.main(["export", str(run / "checkpoints" / "best.ckpt"), "--no-onnx"]) == 0
    assert (run / "exported" / "model.safetensors").is_file()
    shutil.copy(run / "checkpoints" / "best.ckpt", tmp_path / "alone.ckpt")
    assert cli.main(["export", str(tmp_path / "alone.ckpt"), "--no-onnx"]) == 0
    assert (tmp_path / "exported" / "model.safetensors").is_file()


def test_a_network_of_an_image_folder_is_evaluated_and_exported(tmp_path, capsys):
    write_folder(tmp_path / "images")
    train(recipe_of(tmp_path / "images", "trainer.epochs=1"), tmp_path / "run")
    write_folder(tmp_path / "others", splits=("test",), each=2)
    assert cli.main(["export", str(tmp_path / "run")]) == 0
    capsys.readouterr()
    words = [f"data.root={tmp_path / 'others'}", "data.val_split=test"]
    said = []
    for file in FILES:
        assert cli.main(["evaluate", str(tmp_path / "run" / file), *words]) == 0
        said.append(capsys.readouterr().out.partition("data ")[2])
        assert f"{tmp_path / 'others'}, 6 images" in said[-1]
    assert len(set(said[:3])) == 1
    (tmp_path / "others" / "test" / "emu").rename(tmp_path / "others" / "test" / "owl")
    assert cli.main(["evaluate", str(tmp_path / "run"), *words]) == 1
    assert "must have the classes that the model was trained on, 3 from cat to emu" in capsys.readouterr().err


def test_an_output_in_no_folder_is_refused_before_anything_is_computed(folder, tmp_path, capsys):
    assert cli.main(["evaluate", str(folder), "--output", str(tmp_path / "none" / "out.json")]) == 1
    assert f"--output must be in a folder that is there, found none at {tmp_path / 'none'}" in capsys.readouterr().err


def test_stock_networks_are_exported_as_they_are(tmp_path):
    train(load_recipe(TINY, ["trainer.epochs=1"], "stock"), tmp_path)
    assert export.export(load_trained(tmp_path), tmp_path / "out", onnx=False) == {"model.safetensors": 0.0}


def test_a_file_that_computes_something_else_is_refused(folder, tmp_path, monkeypatch):
    def wrong(network):
        network.head.fc.bias.data.add_(torch.arange(10.0))
        return fuse(network)

    monkeypatch.setattr("torchdcls.training.trained.fuse_if_needed", wrong)
    with pytest.raises(ValueError, match=r"model.safetensors must compute what the network does, differs by"):
        export.export(load_trained(folder), tmp_path, onnx=False)


def test_files_that_cannot_be_read_are_refused(folder, tmp_path):
    for path, error, message in (
        (tmp_path, FileNotFoundError, "model must be a run folder with checkpoints, or a file, found none in"),
        (tmp_path / "no.ckpt", FileNotFoundError, r"model must be .* file, found no .*no.ckpt"),
        (folder / "metrics.csv", ValueError, r"model must be .* file, got .*metrics.csv"),
    ):
        with pytest.raises(error, match=message):
            load_trained(path)
    from safetensors.torch import save_file

    save_file({"a": torch.zeros(1)}, tmp_path / "foreign.safetensors")
    with pytest.raises(ValueError, match=r"foreign.safetensors must come from torchdcls export"):
        load_trained(tmp_path / "foreign.safetensors")
    from torchdcls.training.checkpoints import write_checkpoint

    write_checkpoint({"state_dict": {}}, tmp_path / "foreign.ckpt")
    with pytest.raises(ValueError, match=r"foreign.ckpt must come from a run of torchdcls train, got one without"):
        load_trained(tmp_path / "foreign.ckpt")


def test_other_classes_are_refused(folder):
    trained = load_trained(folder)
    with pytest.raises(
        ValueError, match="must have the classes that the model was trained on, 2 from cat to dog, got 10"
    ):
        evaluate(dataclasses.replace(trained, names=("cat", "dog")))
    with pytest.raises(ValueError, match=r"got .*model.onnx, which is fused already"):
        cli_run_export(folder / "exported" / "model.onnx")
    assert change(trained.recipe, ["data.val_subset=3"]).data.val_subset == 3


def cli_run_export(path):
    import argparse

    return export.run(argparse.Namespace(model=path, folder=None, no_onnx=True))

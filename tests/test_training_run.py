"""Whole runs of seconds: what they leave behind, and that each technique does what its switch says."""

import copy
import csv
import json
import math
import warnings

import numpy as np
import pytest
import torch
from tests.test_training import TINY
from tests.test_training_faults import rows
from torch import nn

from torchdcls import Dcls2d, dense_kernel
from torchdcls.parameter_groups import placement_parameters
from torchdcls.training import cli, module
from torchdcls.training.checkpoints import read_checkpoint
from torchdcls.training.data import open_sets
from torchdcls.training.history import COLUMNS
from torchdcls.training.module import Training, count_hits, make_optimizer, make_scheduler
from torchdcls.training.network import build_network
from torchdcls.training.recipe import change, load_recipe
from torchdcls.training.run import is_complete, train
from torchdcls.training.trained import load_trained

PLAIN = ["augmentation.enabled=false", "trainer.ema=null", "model.arguments.drop_path_rate=0", "dcls.repulsion=0"]


def run(folder, *words, variant=None, resume=False):
    recipe = load_recipe(TINY, words, variant)
    train(recipe, folder, resume)
    return recipe, read_checkpoint(folder / "checkpoints" / "last.ckpt")


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    recipe, checkpoint = run(folder, "machine.tensorboard=true", "machine.pictures=true", "machine.progress=true")
    return folder, recipe, checkpoint


# ---- what a run leaves


def test_metrics_have_a_row_for_each_epoch(finished):
    folder, _, _ = finished
    with (folder / "metrics.csv").open() as file:
        found = list(csv.DictReader(file))
    assert tuple(found[0]) == COLUMNS
    assert [(row["epoch"], row["step"]) for row in found] == [("1", "5"), ("2", "10"), ("3", "15")]
    for row in found:
        assert all(np.isfinite(float(entry)) for entry in row.values())
        assert float(row["lr_positions"]) == pytest.approx(5 * float(row["lr_decay"]), rel=1e-9)
        assert float(row["lr_no_decay"]) == float(row["lr_decay"])
        assert float(row["images_per_second"]) > 1
    moved = [float(row["position_movement"]) for row in found]
    assert 0 < moved[0] < moved[2]


def test_positions_are_kept_from_the_start_to_the_end(finished):
    folder, _, checkpoint = finished
    with np.load(folder / "positions.npz") as kept:
        assert kept["epochs"].tolist() == [0, 1, 2, 3]
        names = set(kept.files) - {"epochs"}
        assert names == {f"stages.{i}.blocks.0.conv_dw.{kind}" for i in range(4) for kind in ("position", "sigma")}
        for name in names:
            last = checkpoint["state_dict"][f"network.{name}"]
            assert kept[name].shape == (4, *last.shape)
            np.testing.assert_array_equal(kept[name][-1], last)


def test_large_parameters_keep_their_first_kernels(tmp_path, monkeypatch):
    monkeypatch.setattr("torchdcls.training.history._KEPT", 20)
    monkeypatch.setattr("torchdcls.training.history._KERNELS", 3)
    run(tmp_path, "trainer.epochs=1", *PLAIN)
    with np.load(tmp_path / "positions.npz") as kept:
        assert kept["stages.0.blocks.0.conv_dw.position"].shape == (2, 2, 3, 1, 3)


def test_summary(finished):
    folder, recipe, _ = finished
    summary = json.loads((folder / "summary.json").read_text())
    last = rows(folder)[-1]
    assert {key: summary[key] for key in ("variant", "seed", "model", "interpolation", "size", "count", "epochs")} == {
        "variant": "gauss",
        "seed": 0,
        "model": "convnext_atto",
        "interpolation": "gauss",
        "size": 7,
        "count": 3,
        "epochs": 3,
    }
    assert all(str(summary[key]) == last[key] for key in ("train_loss", "val_loss", "val_top1", "val_top5"))
    assert summary["complete"] is True
    assert summary["seconds"] > 0
    assert is_complete(folder, recipe)
    assert not is_complete(folder, change(recipe, ["seed=1"]))
    assert not is_complete(folder / "nowhere", recipe)
    assert load_recipe(folder / "recipe.yaml") == recipe


def test_tensorboard_and_pictures(finished):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    folder, _, _ = finished
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        events = EventAccumulator(str(folder / "tensorboard")).Reload()
    tags = events.Tags()
    assert {"epoch/val_top1", "epoch/val_top5", "epoch/train_loss", "epoch/position_movement"} <= set(tags["scalars"])
    assert {"epoch/lr_positions", "epoch/width_mean", "epoch/images_per_second"} <= set(tags["scalars"])
    assert "placement/stages.0.blocks.0.conv_dw.position" in tags["histograms"]
    assert tags["images"] == ["kernels"]
    assert [event.step for event in events.Scalars("epoch/val_loss")] == [5, 10, 15]
    pictures = sorted(path.name for path in (folder / "figures").iterdir())
    assert pictures == [f"kernels_epoch_{epoch:03}.png" for epoch in range(4)]


def test_a_folder_belongs_to_one_run(finished, tmp_path, capsys):
    folder, recipe, _ = finished
    before = (folder / "checkpoints" / "last.ckpt").stat().st_mtime_ns
    train(recipe, folder)
    assert (folder / "checkpoints" / "last.ckpt").stat().st_mtime_ns == before, "a complete run is left as it is"
    with pytest.raises(ValueError, match=r"holds another run; optimizer.lr is 0.003 in the one, 1.0 in the other"):
        train(change(recipe, ["optimizer.lr=1"]), folder)
    (folder / "summary.json").rename(tmp_path / "summary.json")
    with pytest.raises(ValueError, match="holds a part of this run; --resume goes on"):
        train(recipe, folder)
    (tmp_path / "summary.json").rename(folder / "summary.json")
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match="folder must be a folder for the run, got the file"):
        train(recipe, tmp_path / "file")
    words = ["--folder", str(folder), "machine.tensorboard=true", "machine.pictures=true", "machine.progress=true"]
    assert cli.main(["train", str(TINY), *words]) == 0
    assert "nothing is left to do" in capsys.readouterr().out


# ---- devices and batches


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["machine.accelerator=gpu"], "machine.accelerator=gpu needs a GPU that torch can use, found none"),
        (["machine.devices=3"], r"batch_size must be divisible by .* = 3 x 1 x 1 = 3, got 8"),
        (["machine.accumulate=8"], "mixup and cutmix need an even number of images on each device and step, got 1"),
    ],
)
def test_what_cannot_run_is_refused(words, message, tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    with pytest.raises(ValueError, match=message):
        run(tmp_path, *words)
    assert not (tmp_path / "checkpoints").exists()


def test_accumulated_steps_amount_to_one_batch(tmp_path):
    words = [*PLAIN, "trainer.epochs=1"]
    _, one = run(tmp_path / "one", *words)
    _, four = run(tmp_path / "four", "machine.accumulate=4", *words)
    assert one["global_step"] == four["global_step"] == 5
    for name, tensor in one["state_dict"].items():
        torch.testing.assert_close(four["state_dict"][name], tensor, rtol=1e-3, atol=1e-4)
    for key in ("train_loss", "val_loss"):
        assert float(rows(tmp_path / "one")[0][key]) == pytest.approx(float(rows(tmp_path / "four")[0][key]), rel=1e-4)


def test_bf16(tmp_path):
    kinds = []
    original = nn.Linear.forward

    def note(self, input):
        output = original(self, input)
        kinds.append(output.dtype)
        return output

    nn.Linear.forward = note
    try:
        _, checkpoint = run(tmp_path, "trainer.precision=bf16-mixed", "trainer.epochs=1")
    finally:
        nn.Linear.forward = original
    assert torch.bfloat16 in kinds
    assert {tensor.dtype for tensor in checkpoint["state_dict"].values()} == {torch.float32}
    assert 1 < float(rows(tmp_path)[0]["val_loss"]) < 4


# ---- learning techniques


def fit_steps(recipe, monkeypatch, folder, steps_seen):
    original = Training.configure_optimizers

    def configure(self):
        configured = original(self)
        configured["optimizer"].register_step_pre_hook(
            lambda optimizer, *_: steps_seen.append(
                {group["name"]: (group["lr"], group["weight_decay"]) for group in optimizer.param_groups}
            )
        )
        return configured

    monkeypatch.setattr(Training, "configure_optimizers", configure)
    train(recipe, folder)


@pytest.mark.parametrize("name", ["cosine", "step", "poly"])
def test_the_ratio_of_learning_rates_holds_through_the_whole_run(name, tmp_path, monkeypatch):
    seen = []
    recipe = load_recipe(TINY, [*PLAIN, f"schedule.name={name}", "schedule.decay_epochs=1", "dcls.position_lr_scale=7"])
    fit_steps(recipe, monkeypatch, tmp_path, seen)
    assert len(seen) == 15
    assert len({step["decay"][0] for step in seen}) >= 7
    for step in seen:
        assert step["positions"][0] == pytest.approx(7 * step["decay"][0], rel=1e-9)
        assert (step["decay"][1], step["no_decay"][1], step["positions"][1]) == (0.05, 0.0, 0.0)
    assert seen[0]["decay"][0] == 0
    assert max(step["decay"][0] for step in seen) <= 3e-3


def test_the_schedule_is_timms_per_update():
    recipe = load_recipe("convnext_tiny_imagenet")
    optimizer = make_optimizer(recipe, nn.Linear(2, 2))
    scheduler = make_scheduler(recipe, optimizer, updates=2)
    rates = []
    for update in range(600):
        rates.append(optimizer.param_groups[0]["lr"])
        scheduler.step_update(update + 1)
    assert rates[:41:20] == pytest.approx([0, 2e-3, 1e-6 + (4e-3 - 1e-6) * (1 + math.cos(math.pi / 15)) / 2])
    assert rates.index(max(rates)) == 40, "20 epochs of warm-up"
    assert optimizer.param_groups[0]["lr"] == pytest.approx(1e-6)


def test_optimisers_without_betas():
    recipe = load_recipe(TINY, ["optimizer.name=sgd", "optimizer.betas=null", "optimizer.eps=null"])
    assert make_optimizer(recipe, nn.Linear(2, 2)).param_groups[0]["momentum"] == 0.9
    with pytest.raises(ValueError, match=r"optimizer must be one of timm's with values that it takes .*got 'adamww'"):
        make_optimizer(load_recipe(TINY, ["optimizer.name=adamww"]), nn.Linear(2, 2))


@pytest.mark.parametrize("clamp", [True, False])
def test_clamping_has_a_switch(clamp):
    recipe = load_recipe(TINY, [*PLAIN, f"dcls.clamp={clamp}".lower()], variant="bilinear")
    training = Training(recipe, build_network(recipe, 10)[0], open_sets(recipe), 10)
    optimizer = training.configure_optimizers()["optimizer"]
    for group in optimizer.param_groups:
        group["lr"] = 10.0
    position = layers(training.network)[0].position
    position.grad = torch.ones_like(position)
    optimizer.step()
    assert (position.min() >= -3) == clamp


def built(*words, variant=None):
    recipe = load_recipe(TINY, words, variant)
    torch.manual_seed(0)
    return build_network(recipe, 10)[0]


def layers(network):
    return [part for part in network.modules() if isinstance(part, Dcls2d)]


def test_switches_of_the_layers():
    assert {id(layer.position) for layer in layers(built())} != {id(layer.position) for layer in layers(built())}
    shared, own = (len(list(placement_parameters(built(*words)))) for words in ([], ["dcls.share=null"]))
    assert (shared, own) == (8, 10)
    assert not any(layer.sigma.requires_grad for layer in layers(built("dcls.learn_width=false")))
    assert all(layer.sigma.eq(0.4).all() for layer in layers(built("dcls.sigma=0.4")))
    narrow = layers(built("dcls.position_std=0.1"))
    assert all(torch.allclose(a.position, b.position / 5) for a, b in zip(narrow, layers(built()), strict=True))
    assert [layer.kernel_count for layer in layers(built("dcls.kernel_count=match"))] == [12] * 5
    chosen = built(r"dcls.where=stages\.[01]\..*conv_dw")
    assert len(layers(chosen)) == 2
    assert len(layers(built("dcls.where=.*conv_dw"))) == 5
    with pytest.raises(ValueError, match=r"dcls.where must be a regular expression, got '\('"):
        built("dcls.where=(")


def test_models_that_are_not_timms():
    with pytest.raises(ValueError, match=r"got 'convnext_tinny'; did you mean convnext_tiny\?"):
        built("model.name=convnext_tinny")
    with pytest.raises(TypeError, match=r"model.arguments must be what convnext_atto of timm takes"):
        built("model.arguments.width=3")


def test_a_stock_network_is_fitted_from_a_file(tmp_path):
    stock = built("dcls=null")
    torch.save(stock.state_dict(), tmp_path / "stock.pth")
    words = [f"model.weights={tmp_path}/stock.pth", "dcls.kernel_count=30"]
    fitted = built(*words, "dcls.start=fit")
    assert torch.equal(fitted.stages[1].downsample[1].weight, stock.stages[1].downsample[1].weight)

    def error(network):
        kernel = layers(network)[0].dense_kernel()
        return ((kernel - stock.stages[0].blocks[0].conv_dw.weight).norm() / kernel.norm()).item()

    assert error(fitted) < 0.5 < error(built(*words))


def test_repulsion_joins_after_its_epoch(tmp_path, monkeypatch):
    epochs = []
    original = module.repulsion_loss
    monkeypatch.setattr(module, "repulsion_loss", lambda network: epochs.append(1) or original(network))
    run(tmp_path, "machine.save_every=null")
    assert len(epochs) == 10, "of 15 steps, those of the second and third epoch"


def test_the_average_counts_a_shared_parameter_once(tmp_path):
    recipe, sets = load_recipe(TINY), open_sets(load_recipe(TINY))
    network, _ = build_network(recipe, 10)
    training = Training(recipe, network, sets, 10)
    before = copy.deepcopy(dict(training.average.named_parameters()))
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(1.0)
    training._update_average()
    for name, parameter in training.average.named_parameters():
        torch.testing.assert_close(parameter, before[name] + 0.1, msg=name)
    assert layers(training.average)[2].position is layers(training.average)[3].position


def test_the_average_is_what_is_validated(finished):
    folder, recipe, checkpoint = finished
    averaged = load_trained(folder)
    assert "averaged weights" in averaged.what
    current, _ = build_network(recipe, 10)
    current.load_state_dict(
        {name[8:]: tensor for name, tensor in checkpoint["state_dict"].items() if name.startswith("network.")}
    )
    sets = open_sets(recipe)
    images, targets = (
        torch.stack([torch.as_tensor(sets.validation[0, i][part]) for i in range(40)]) for part in range(2)
    )
    with torch.no_grad():
        losses = [count_hits(net(images), targets)[:, 0].mean().item() for net in (averaged.predict, current.eval())]
    assert losses[0] == pytest.approx(float(rows(folder)[-1]["val_loss"]), rel=1e-5)
    assert losses[0] != pytest.approx(losses[1], rel=1e-5)


def test_stock_runs_have_empty_columns(tmp_path):
    _, checkpoint = run(tmp_path, "trainer.epochs=1", "machine.pictures=true", variant="stock")
    (row,) = rows(tmp_path)
    assert row["lr_positions"] == row["position_movement"] == row["width_mean"] == ""
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert (summary["interpolation"], summary["size"], summary["count"]) == ("stock", 7, 49)
    assert (tmp_path / "figures" / "kernels_epoch_001.png").is_file()
    assert not any("position" in name for name in checkpoint["state_dict"])


def test_a_run_learns(tmp_path):
    words = [*PLAIN, "data.subset=200", "data.val_subset=200", "trainer.epochs=8", "augmentation.smoothing=0"]
    run(tmp_path, *words, "optimizer.lr=1e-2", "machine.save_every=null")
    found = rows(tmp_path)
    assert float(found[-1]["train_loss"]) < 0.6 * float(found[0]["train_loss"])
    assert float(found[-1]["val_top1"]) > 40


def test_kernels_are_those_of_the_saved_parameters(finished):
    folder, _, _ = finished
    layer = layers(load_trained(folder).predict)[0]
    kernel = dense_kernel(layer.weight, layer.position, layer.sigma, (7, 7), "gauss")
    assert torch.equal(layer.dense_kernel(), kernel)

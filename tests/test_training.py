"""Recipes and the command line: what they say, what they refuse."""

import dataclasses
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import yaml
from lightning.pytorch.plugins.environments import LightningEnvironment, SLURMEnvironment

from torchdcls import __version__
from torchdcls.training import cli, devices
from torchdcls.training.network import build_network
from torchdcls.training.recipe import Recipe, change, load_recipe, same_run, shipped_recipes, variants
from torchdcls.training.values import described, plain, read_yaml

HERE = Path(__file__).parent
TINY = HERE / "training_recipe.yaml"


def parameters(recipe, classes):
    machine = dataclasses.replace(recipe.machine, channels_last=False)
    with torch.device("meta"):
        network, _ = build_network(dataclasses.replace(recipe, machine=machine), classes)
    return sum(parameter.numel() for parameter in network.parameters())


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (
            "convnext_tiny_imagenet",
            {
                "stock": 28_589_128,
                "bilinear": 28_587_688,
                "triangle": 28_586_536,
                "gauss": 28_586_536,
                "gauss_17_26": 28_586_536,
                "gauss_23_34": 28_685_608,
            },
        ),
        (
            "convformer_s18_imagenet",
            {"stock": 26_774_448, "bilinear": 26_763_952, "triangle": 26_757_808, "gauss": 26_757_808},
        ),
    ],
)
def test_the_papers_models_have_the_papers_parameters(name, expected):
    assert {variant: parameters(load_recipe(name, variant=variant), 1000) for variant in expected} == expected


def test_the_papers_values():
    recipe = load_recipe("convnext_tiny_imagenet")
    a, o, s, t, d = recipe.augmentation, recipe.optimizer, recipe.schedule, recipe.trainer, recipe.dcls
    assert (t.epochs, t.batch_size, t.ema, recipe.epochs) == (300, 4096, 0.9999, 300)
    assert (o.name, o.lr, o.betas, o.eps, o.weight_decay, o.clip) == ("adamw", 4e-3, (0.9, 0.999), 1e-8, 0.05, None)
    assert (s.name, s.min_lr, s.warmup_epochs, s.cooldown_epochs) == ("cosine", 1e-6, 20, 0)
    assert recipe.model.arguments == {"drop_path_rate": 0.1, "ls_init_value": 1e-6}
    assert (a.auto_augment, a.color_jitter, a.smoothing) == ("rand-m9-mstd0.5-inc1", 0.4, 0.1)
    assert (a.mixup, a.cutmix, a.mix_probability, a.mix_switch) == (0.8, 1.0, 1.0, 0.5)
    assert (a.erase, a.erase_mode, a.interpolation, a.crop_pct, a.image_size) == (0.25, "pixel", "bicubic", 0.875, 224)
    assert (d.position_lr_scale, d.position_weight_decay, d.share, d.position_std) == (5, 0, "stage", 0.5)
    other = load_recipe("convformer_s18_imagenet")
    differing = {line.split()[0] for line in same_run(recipe, other)}
    assert differing == {
        "name",
        "model.name",
        "model.arguments.drop_path_rate",
        "model.arguments.ls_init_value",
        "model.arguments.drop_rate",
        "augmentation.interpolation",
        "augmentation.crop_pct",
        "schedule.warmup_lr",
        "schedule.min_lr",
        "schedule.cooldown_epochs",
        "trainer.ema",
    }
    assert (other.epochs, other.schedule.min_lr, other.schedule.warmup_lr) == (310, 1e-5, 1e-6)
    assert (other.augmentation.interpolation, other.augmentation.crop_pct, other.trainer.ema) == ("random", 1.0, None)


@pytest.mark.parametrize("name", ["digits", "cifar10"])
def test_counts_match_the_stock_model(name):
    counts = {variant: parameters(load_recipe(name, variant=variant), 10) for variant in variants(name)}
    stock = counts.pop("stock")
    assert len(counts) >= 3
    assert all(0.99 * stock < count <= stock for count in counts.values())


@pytest.mark.parametrize("name", shipped_recipes())
def test_every_shipped_variant_loads_and_comes_back_from_its_file(name, tmp_path):
    assert shipped_recipes()[name], "the first line of a recipe says what it is"
    for variant in variants(name):
        recipe = load_recipe(name, variant=variant)
        assert recipe.variant == variant
        assert (recipe.interpolation == "stock") == (recipe.dcls is None)
        recipe.save(tmp_path / "recipe.yaml")
        assert load_recipe(tmp_path / "recipe.yaml") == recipe
    assert load_recipe(name).variant in variants(name)


def test_the_line_beats_the_variant_beats_the_file():
    recipe = load_recipe(TINY, ["seed=3", "optimizer.lr=1e-4", "dcls.kernel_count=match"], variant="bilinear")
    assert (recipe.seed, recipe.optimizer.lr, recipe.dcls.kernel_count) == (3, 1e-4, "match")
    assert (recipe.dcls.interpolation, recipe.dcls.dilated_kernel_size) == ("bilinear", 7)
    assert load_recipe(TINY, variant="stock").dcls is None
    assert change(recipe, ["dcls=null"]).interpolation == "stock"


WRONG = {
    "section": (["optimzer.lr=1"], ValueError, r"optimzer is not a value of a recipe; did you mean optimizer\?"),
    "key": (["augmentation.mixupp=1"], ValueError, r"augmentation.mixupp is not .*did you mean augmentation.mixup\?"),
    "far key": (["optimizer.q=1"], ValueError, r"optimizer.q is not .*; there are optimizer.name, optimizer.lr, "),
    "word": (["optimizer.lr=fast"], TypeError, "optimizer.lr must be a number, got 'fast'"),
    "bool": (["trainer.epochs=true"], TypeError, "trainer.epochs must be an integer, got True"),
    "float": (["trainer.epochs=1.5"], TypeError, "trainer.epochs must be an integer, got 1.5"),
    "flag": (["data.cache=1"], TypeError, "data.cache must be true or false, got 1"),
    "choice": (
        ["trainer.precision=bf16"],
        TypeError,
        "trainer.precision must be '32-true' or 'bf16-mixed'.*got 'bf16'",
    ),
    "length": (["optimizer.betas=[1]"], TypeError, r"optimizer.betas must be a list of 2 numbers or null, got \[1\]"),
    "list": (["augmentation.mean=3"], TypeError, "augmentation.mean must be a list of numbers, got 3"),
    "mapping": (["model.arguments=3"], TypeError, "model.arguments must be a mapping, got 3"),
    "section value": (["trainer=3"], TypeError, "trainer must be a section with values of its own, got 3"),
    "no sign": (["trainer.epochs"], ValueError, "values must be given as section.key=value, got 'trainer.epochs'"),
    "yaml": (["model.arguments={a"], ValueError, r"model.arguments must be given as .* in YAML, got '\{a'"),
    "epochs": (["trainer.epochs=0"], ValueError, "trainer.epochs must be at least 1, got 0"),
    "devices": (["machine.devices=0"], ValueError, "machine.devices must be at least 1, or -1 for all, got 0"),
    "save": (["machine.save_every=0"], ValueError, "machine.save_every must be at least 1, or null, got 0"),
    "ema": (["trainer.ema=1.0"], ValueError, "trainer.ema must be from 0 to below 1, or null, got 1.0"),
    "channels": (["model.channels=2"], ValueError, "model.channels must be 3 for colour or 1 for grey, got 2"),
    "mean": (["augmentation.mean=[0.5, 0.5]"], ValueError, "augmentation.mean must have a number for each of the 1"),
    "threads": (["machine.threads=0"], ValueError, "machine.threads must be at least 1, or null, got 0"),
    "validation": (["trainer.val_batch_size=-5"], ValueError, "trainer.val_batch_size must be at least 1, or null"),
    "clip": (["optimizer.clip=-1"], ValueError, "optimizer.clip must be above 0, or null, got -1"),
    "flip": (["augmentation.hflip=7"], ValueError, "augmentation.hflip must be from 0 to 1, got 7"),
    "smoothing": (["augmentation.smoothing=2"], ValueError, "augmentation.smoothing must be from 0 to 1, got 2"),
    "std": (["augmentation.std=[0]"], ValueError, r"augmentation.std must be above 0 for each channel, got \(0"),
    "mixup": (["augmentation.mixup=-1"], ValueError, "augmentation.mixup must be at least 0, got -1"),
    "not a number": (["schedule.warmup_epochs=.nan"], ValueError, "schedule.warmup_epochs must be at least 0, got nan"),
    "repulsion": (["dcls.repulsion=-3"], ValueError, "dcls.repulsion must be at least 0, got -3"),
    "variant": (["variant=stock"], ValueError, "a variant is chosen by --variant, got variant=stock"),
    "interpolation": (["dcls.interpolation=gaus"], ValueError, r"got 'gaus'; did you mean gauss\?"),
}


@pytest.mark.parametrize(("words", "error", "message"), WRONG.values(), ids=WRONG)
def test_wrong_values_are_refused_with_the_nearest_right_one(words, error, message):
    with pytest.raises(error, match=message):
        load_recipe(TINY, words)


def test_wrong_recipes_are_refused(tmp_path):
    with pytest.raises(ValueError, match=r"one of cifar10, .*got 'digit'; did you mean digits\?"):
        load_recipe("digit")
    with pytest.raises(ValueError, match=r"variant 'gaus' is not one of digits's; did you mean gauss\?"):
        load_recipe("digits", variant="gaus")
    with pytest.raises(ValueError, match=r"dcls.kernel_count is for Dcls layers, and the variant stock has none"):
        load_recipe("digits", ["dcls.kernel_count=3"], variant="stock")
    with pytest.raises(FileNotFoundError, match=r"recipe must be .* a YAML file, found no file mine.yaml"):
        load_recipe("mine.yaml")
    for text, error, message in (
        ("[1]", TypeError, "hold sections, got list"),
        ("{a", ValueError, "must be valid YAML"),
    ):
        (tmp_path / "bad.yaml").write_text(text)
        with pytest.raises(error, match=message):
            load_recipe(tmp_path / "bad.yaml")


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        ("variant: guass\nvariants: {gauss: {}, stock: {}}", ValueError, r"variant 'guass' .*did you mean gauss\?"),
        ("variants: [gauss]", TypeError, r"variants must be names with sections below each, got \['gauss'\]"),
        ("variants: {gauss: 3}", TypeError, "variants must be names with sections below each"),
        ("variants:", TypeError, "variants must be names with sections below each, got None"),
    ],
)
def test_variants_that_are_none_are_refused(text, error, message, tmp_path):
    (tmp_path / "mine.yaml").write_text(text)
    with pytest.raises(error, match=message):
        load_recipe(tmp_path / "mine.yaml")


def test_arguments_of_a_model_can_be_emptied():
    assert load_recipe("digits").model.arguments
    assert load_recipe("digits", ["model.arguments={}"]).model.arguments == {}


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("schedule.name=cosin", "schedule.name must be one of cosine, .*got 'cosin'"),
        ("schedule.name=plateau", "schedule.name must be one of cosine, .*got 'plateau'"),
        ("model.weights=nowhere.pth", "model.weights must be a file of trained weights, found none at nowhere.pth"),
    ],
)
def test_a_dry_run_refuses_what_training_would(word, message, capsys):
    assert cli.main(["train", str(TINY), "--dry-run", word]) == 1
    assert re.search(message, capsys.readouterr().err)


def test_devices_that_are_not_there_are_no_processes_on_the_cpu(capsys, monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    words = ["train", str(TINY), "--dry-run", "--devices", "2", "machine.accelerator=auto"]
    assert cli.main(words) == 1
    assert "machine.devices=2 needs GPUs that torch can use, found none" in capsys.readouterr().err


def test_torchrun_and_the_recipe_must_agree(capsys, monkeypatch):
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert cli.main(["train", str(TINY), "--dry-run"]) == 1
    assert "torchrun has started 2 processes, and the recipe has 1 nodes with 1 devices" in capsys.readouterr().err
    assert cli.main(["train", str(TINY), "--dry-run", "--devices", "2", "trainer.batch_size=16"]) == 0


def test_a_dry_run_downloads_no_weights(capsys):
    assert cli.main(["train", str(TINY), "--dry-run", "model.pretrained=true"]) == 0
    assert "the trained weights that the run starts from are not downloaded for this" in capsys.readouterr().out


def test_srun_and_the_recipe_must_agree(capsys, monkeypatch):
    monkeypatch.setenv("SLURM_JOB_NAME", "train")
    for name in ("SLURM_NTASKS", "SLURM_NTASKS_PER_NODE", "SLURM_STEP_NUM_TASKS"):
        monkeypatch.setenv(name, "4")
    assert cli.main(["train", str(TINY), "--dry-run"]) == 1
    message = capsys.readouterr().err
    assert "srun has started 4 processes, and the recipe has 1 nodes with 1 devices" in message
    assert "--ntasks-per-node" in message
    four = change(load_recipe(TINY), ["machine.devices=4"])
    assert devices.count_devices(four) == 4
    assert devices.count_devices(change(four, ["machine.devices=2", "machine.nodes=2"])) == 2
    (environment,) = devices.cluster(four)
    assert isinstance(environment, SLURMEnvironment)
    assert not environment.auto_requeue
    monkeypatch.setenv("SLURM_JOB_NAME", "interactive")  # a shell, where nothing is started by srun
    assert devices.cluster(four) == []
    assert devices.count_devices(four) == 4


def test_a_process_alone_in_a_job_starts_its_own(monkeypatch):
    monkeypatch.setenv("SLURM_JOB_NAME", "train")
    for name in ("SLURM_NTASKS", "SLURM_NTASKS_PER_NODE"):  # of the job, in whose script nothing was started by srun
        monkeypatch.setenv(name, "8")
    monkeypatch.delenv("SLURM_STEP_NUM_TASKS", raising=False)
    two = change(load_recipe(TINY), ["machine.devices=2"])
    assert devices.count_devices(two) == 2
    (environment,) = devices.cluster(two)
    assert isinstance(environment, LightningEnvironment)
    with pytest.raises(ValueError, match="srun has started 1 processes, and the recipe has 2 nodes with 2 devices"):
        devices.count_devices(change(two, ["machine.nodes=2"]))


def test_numbers_that_yaml_takes_for_words():
    assert read_yaml("[1e-3, -2E+4, 1.e5, 3, e5, 1e]") == [1e-3, -2e4, 1e5, 3, "e5", "1e"]


def test_two_recipes_are_the_same_run_on_other_machines():
    recipe = load_recipe(TINY)
    assert not same_run(recipe, change(recipe, ["machine.workers=3", "machine.devices=2"]))
    (difference,) = same_run(recipe, change(recipe, ["optimizer.lr=1"]))
    assert difference == "optimizer.lr is 0.003 in the one, 1.0 in the other"


def test_every_value_has_a_word_of_help():
    keys = []
    for key, kind, text in described(Recipe):
        keys.append(key)
        assert len(text) > 10, key
        assert "default" in kind

    def leaves(values, path=""):
        for name, entry in values.items():
            key = f"{path}{name}"
            yield from leaves(entry, f"{key}.") if isinstance(entry, dict) and entry else [key]

    assert keys == list(leaves(plain(Recipe())))


def test_help_shows_every_value(capsys):
    with pytest.raises(SystemExit) as stop:
        cli.main(["train", "--help"])
    assert stop.value.code == 0
    out = capsys.readouterr().out
    assert all(key in out for key, _, _ in described(Recipe))
    assert all(name in out for name in shipped_recipes())


@pytest.mark.parametrize("command", [name for name, _ in cli.COMMANDS])
def test_each_command_helps(command, capsys):
    with pytest.raises(SystemExit) as stop:
        cli.main([command, "--help"])
    assert stop.value.code == 0
    assert command in capsys.readouterr().out


def test_version_and_unknown_commands(capsys):
    result = subprocess.run([sys.executable, "-m", "torchdcls", "--version"], capture_output=True, text=True)
    assert result.stdout == f"torchdcls {__version__}\n"
    with pytest.raises(SystemExit):
        cli.main(["trian"])
    assert "invalid choice: 'trian'" in capsys.readouterr().err


def test_errors_are_one_sentence(capsys):
    assert cli.main(["train", "digits", "optimizer.rate=1"]) == 1
    assert re.fullmatch(r"torchdcls train: optimizer.rate is not a value of a recipe; .*\n", capsys.readouterr().err)


@pytest.mark.parametrize(("missing", "extra"), [("lightning.pytorch", "train"), ("yaml", "train"), ("onnx", "export")])
def test_what_is_not_installed_is_named(missing, extra, monkeypatch, capsys):
    def fail(name, package):
        raise ModuleNotFoundError(f"No module named {missing!r}", name=missing)

    monkeypatch.setattr(cli.importlib, "import_module", fail)
    assert cli.main(["train", "digits"]) == 1
    needed = missing.split(".")[0]
    assert capsys.readouterr().err == f"torchdcls train needs {needed}: pip install 'torchdcls[{extra}]'\n"
    missing = "something_else"
    with pytest.raises(ModuleNotFoundError, match="something_else"):
        cli.main(["train", "digits"])


def test_dry_run_prints_the_plan(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    words = ["trainer.batch_size=16", "machine.accumulate=2", "--variant", "bilinear", "--devices", "2", "--nodes", "2"]
    assert cli.main(["train", str(TINY), "--dry-run", *words]) == 0
    out = capsys.readouterr().out
    for line in (
        "variant bilinear, seed 0",
        "44 images to train on",
        "devices     2 x 2 cpu, 32-true",
        "16 images an update = 4 x 2 x 2",
        "3 epochs x 2 updates = 6",
        "warm-up until update 2, 0.003 at its peak, 1e-05 at its end, update 6",
        "positions: 144 parameters, learning rate 0.015, weight decay 0",
        "stages.2.blocks.1.conv_dw  Conv2d 7x7  Dcls2d 7x7 / 3, bilinear  2",
    ):
        assert line in out
    assert not list(tmp_path.iterdir())


def test_recipes_are_in_the_package():
    configuration = (HERE.parent / "pyproject.toml").read_text()
    assert "training/recipes/*.yaml" in configuration
    assert set(shipped_recipes()) == {
        "cifar10",
        "convformer_s18_imagenet",
        "convnext_tiny_imagenet",
        "digits",
        "folder",
    }
    assert yaml.safe_load(load_recipe("digits").to_yaml())["name"] == "digits"
    assert json.dumps(plain(load_recipe("folder")))

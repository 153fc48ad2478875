"""What a run is made of: every value that decides a result, in frozen dataclasses, read from YAML.

    recipe = load_recipe("digits", ["trainer.epochs=3", "seed=1"], variant="triangle")

A recipe file may hold named ``variants``, mappings of the values in which each differs; ``variant`` says
which one is meant when none is asked for. Command line beats variant beats file beats default.
"""

import dataclasses
import os
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any, Literal

import yaml

from ..interpolation import INTERPOLATIONS
from .limits import check_limits
from .values import build, differences, merge, nearest, parse_overrides, plain, read_yaml, value

_SHIPPED = resources.files(__package__) / "recipes"


@dataclass(frozen=True)
class Model:
    """The network, before any layer is replaced."""

    name: str = value("convnext_tiny", "a model of timm's; `timm.list_models()` has them all")
    arguments: dict[str, Any] = value({}, "what timm.create_model is given besides, such as {drop_path_rate: 0.1}")
    classes: int | None = value(None, "classes to tell apart; null takes as many as the training data has")
    channels: int = value(3, "channels of an image: 3 for colour, 1 for grey")
    pretrained: bool = value(False, "start from the weights that timm has for this model (downloads them)")
    weights: str | None = value(None, "start from the weights of the stock model in this file (.pth or .safetensors)")


@dataclass(frozen=True)
class Dcls:
    """The layers that are put in place of the network's own, and how their positions are trained."""

    interpolation: str = value("gauss", f"one of {', '.join(each.name for each in INTERPOLATIONS)}")
    kernel_count: int | Literal["match"] = value(
        "match", "elements in each kernel; match takes the most that add no parameter to the stock model"
    )
    dilated_kernel_size: int = value(23, "the window in which the elements move, in taps on each axis")
    where: str | None = value(
        None, "regular expression for the names of the layers to replace; null takes every depthwise convolution"
    )
    share: Literal["stage"] | None = value("stage", "stage: one set of positions for the layers of a stage; null: no")
    start: Literal["random", "fit"] = value(
        "random", "positions drawn at random, or fitted to the kernels that are replaced"
    )
    position_std: float = value(0.5, "standard deviation of positions drawn at random, in taps")
    sigma: float | None = value(None, "where sigma starts; null takes the interpolation's own start")
    learn_width: bool = value(True, "false keeps widths where they start")
    position_lr_scale: float = value(5.0, "learning rate of positions and widths, in multiples of the weights'")
    position_weight_decay: float = value(0.0, "weight decay of positions and widths")
    clamp: bool = value(True, "after each step, move positions back into the window where the interpolation needs it")
    repulsion: float = value(0.0, "factor of the loss that keeps the elements of a kernel apart; 0 switches it off")
    repulsion_after: int = value(20, "epochs of training before the repulsion loss begins")


@dataclass(frozen=True)
class Data:
    """Where images come from."""

    name: str = value(
        "",
        "empty for a folder of class folders; digits; or timm's name for a set: hfds/..., wds/..., tfds/..., torch/...",
    )
    root: str | None = value(None, "the folder that holds the set")
    train_split: str = value("train", "the folder, split or shards to train on")
    val_split: str = value("validation", "the folder, split or shards to validate on")
    class_map: str | None = value(None, "file that maps class names to numbers, as timm reads it")
    subset: int | None = value(None, "train on so many images, chosen at random but always the same; null: on all")
    val_subset: int | None = value(None, "validate on so many images, chosen likewise; null: on all")
    cache: bool = value(False, "decode all images at the start and keep them in memory; they must have one size")
    input_key: str | None = value(None, "the key of the image in hfds, wds and tfds sets, where it is not the usual")
    target_key: str | None = value(None, "the key of the class in hfds, wds and tfds sets, where it is not the usual")
    train_samples: int | None = value(None, "images in the training set, for streams (wds, tfds) that do not say")
    val_samples: int | None = value(None, "images in the validation set, for streams that do not say")


@dataclass(frozen=True)
class Augmentation:
    """What happens to an image and its label on the way to the network."""

    image_size: int = value(224, "height and width that the network sees")
    mean: tuple[float, ...] = value((0.485, 0.456, 0.406), "subtracted from each channel of values from 0 to 1")
    std: tuple[float, ...] = value((0.229, 0.224, 0.225), "by which each channel is divided then")
    enabled: bool = value(True, "false trains on images as they are validated")
    crop: Literal["rrc", "rkrc", "rkrr", "pad"] = value(
        "rrc", "training crop: rrc, rkrc, rkrr as timm names them, or pad: anywhere in the image padded by padding"
    )
    padding: int = value(4, "pixels on each side, where crop is pad")
    scale: tuple[float, float] = value((0.08, 1.0), "share of the image's area in a random crop")
    ratio: tuple[float, float] = value((0.75, 4 / 3), "aspect ratio of a random crop")
    hflip: float = value(0.5, "probability of a horizontal flip")
    vflip: float = value(0.0, "probability of a vertical flip")
    color_jitter: float = value(0.4, "strength of colour jitter; timm leaves it out where auto_augment is on")
    auto_augment: str | None = value(None, "timm's words for AutoAugment and RandAugment, such as rand-m9-mstd0.5-inc1")
    interpolation: str = value("bicubic", "how images are resized: bicubic, bilinear, ... or random (in training)")
    crop_pct: float = value(0.875, "share of the resized image that the centre crop of validation keeps")
    erase: float = value(0.0, "probability of random erasing")
    erase_mode: Literal["const", "rand", "pixel"] = value("pixel", "what erased rectangles are filled with")
    erase_count: int = value(1, "the most rectangles to erase in an image")
    mixup: float = value(0.0, "alpha of mixup; 0 switches it off")
    cutmix: float = value(0.0, "alpha of cutmix; 0 switches it off")
    mix_probability: float = value(1.0, "probability that a batch is mixed at all")
    mix_switch: float = value(0.5, "probability of cutmix where both are on")
    mix_mode: Literal["batch", "pair", "elem"] = value("batch", "draw how to mix once for a batch, a pair or an image")
    smoothing: float = value(0.0, "label smoothing")


@dataclass(frozen=True)
class Optimizer:
    """How weights are updated."""

    name: str = value("adamw", "an optimiser of timm's, such as adamw, sgd, lamb")
    lr: float = value(4e-3, "learning rate of the weights at the schedule's peak")
    weight_decay: float = value(0.05, "weight decay of the weights; biases, norms and positions have none")
    betas: tuple[float, float] | None = value((0.9, 0.999), "as in Adam; null for optimisers without")
    eps: float | None = value(1e-8, "as in Adam; null for the optimiser's own")
    momentum: float = value(0.9, "as in SGD; optimisers with betas ignore it")
    clip: float | None = value(None, "the largest norm of the gradient; null does not clip")


@dataclass(frozen=True)
class Schedule:
    """The learning rate over time, set anew before every update."""

    name: str = value("cosine", "a schedule of timm's: cosine, tanh, step, multistep or poly")
    warmup_epochs: float = value(20.0, "epochs of linear warm-up, counted in trainer.epochs")
    warmup_lr: float = value(0.0, "learning rate at the first update")
    min_lr: float = value(1e-6, "learning rate at the end")
    cooldown_epochs: int = value(0, "epochs at min_lr after trainer.epochs")
    decay_epochs: float = value(90.0, "epochs between the decays of the step schedule")
    decay_rate: float = value(0.1, "factor of a decay in the step schedule, power of the poly schedule")


@dataclass(frozen=True)
class Trainer:
    """How long, in which batches and in which arithmetic."""

    epochs: int = value(300, "passes over the training set, without cooldown")
    batch_size: int = value(4096, "images in an update, over all devices and accumulated steps")
    val_batch_size: int | None = value(None, "images in a batch of validation over all devices; null: those of a step")
    precision: Literal["32-true", "bf16-mixed", "16-mixed", "bf16-true", "64-true"] = value(
        "32-true", "arithmetic, in Lightning's words"
    )
    ema: float | None = value(None, "decay of the running average of weights that is validated; null: no average")
    deterministic: bool = value(False, "only algorithms that give the same bits each time; on GPUs they are slower")


@dataclass(frozen=True)
class Machine:
    """Where it runs and what is kept: values that may change when a run is resumed."""

    accelerator: Literal["auto", "cpu", "gpu", "mps"] = value(
        "auto", "kind of device; auto takes a GPU if there is one"
    )
    devices: int = value(1, "devices on each node; -1 takes all that there are")
    nodes: int = value(1, "machines that train together")
    accumulate: int = value(1, "steps in which the images of an update are computed, to save memory")
    workers: int = value(4, "processes that load images for each device; 0 loads in the training process")
    threads: int | None = value(None, "threads that torch computes with on a CPU; null leaves torch its own choice")
    channels_last: bool = value(False, "keep images in channels_last order, which convolutions on GPUs prefer")
    save_every: int | None = value(None, "updates between checkpoints, besides those after each epoch; null: none")
    keep_best: bool = value(True, "keep the checkpoint with the highest top-1 as best.ckpt")
    progress: bool = value(True, "show a progress bar")
    tensorboard: bool = value(True, "write TensorBoard events")
    pictures: bool = value(True, "draw kernels after each epoch")


@dataclass(frozen=True)
class Recipe:
    """Everything that decides a run."""

    name: str = value("recipe", "what reports call it")
    variant: str = value("custom", "the variant that was applied")
    seed: int = value(0, "of initial weights, order and augmentation")
    model: Model = Model()
    dcls: Dcls | None = Dcls()
    data: Data = Data()
    augmentation: Augmentation = Augmentation()
    optimizer: Optimizer = Optimizer()
    schedule: Schedule = Schedule()
    trainer: Trainer = Trainer()
    machine: Machine = Machine()

    def __post_init__(self) -> None:
        check_limits(self)

    @property
    def epochs(self) -> int:
        """Epochs in all, cooldown included."""
        return self.trainer.epochs + self.schedule.cooldown_epochs

    @property
    def interpolation(self) -> str:
        """The name of the interpolation, or ``stock``."""
        return "stock" if self.dcls is None else self.dcls.interpolation

    def save(self, path: Path) -> None:
        """Write the recipe as YAML from which :func:`load_recipe` makes it again."""
        path.write_text(self.to_yaml())

    def to_yaml(self) -> str:
        """The recipe as YAML."""
        return yaml.safe_dump(plain(self), sort_keys=False)


def load_recipe(name_or_path: str | Path, overrides: Sequence[str] = (), variant: str | None = None) -> Recipe:
    """A recipe by the name of one that is shipped, or from a file.

    Args:
        name_or_path: one of :func:`shipped_recipes`, or the path of a YAML file.
        overrides: words ``section.key=value``.
        variant: one of :func:`variants`; None takes the one that the file names.

    >>> recipe = load_recipe("digits", ["trainer.epochs=2", "seed=1"], variant="triangle")
    >>> recipe.trainer.epochs, recipe.interpolation
    (2, 'triangle')
    """
    values = _read(name_or_path)
    known = values.pop("variants", {})
    chosen = variant or values.get("variant")
    if chosen is not None and (variant is not None or known) and chosen not in known:
        raise ValueError(f"variant {chosen!r} is not one of {name_or_path}'s{nearest(str(chosen), known)}")
    values = merge(values, {"variant": chosen} if chosen else {})
    values = merge(values, known.get(chosen, {}))
    given = parse_overrides(overrides)
    if "variant" in given:
        raise ValueError(f"a variant is chosen by --variant, got variant={given['variant']}")
    if values.get("dcls", {}) is None and isinstance(given.get("dcls"), dict):
        raise ValueError(
            f"dcls.{next(iter(given['dcls']))} is for Dcls layers, and the variant {chosen} has none; choose another"
        )
    return build(Recipe, merge(values, given))


def recipe_from_yaml(text: str) -> Recipe:
    """The recipe of which ``text`` is the :meth:`Recipe.to_yaml`."""
    return build(Recipe, read_yaml(text))


def change(recipe: Recipe, overrides: Sequence[str]) -> Recipe:
    """A recipe with some values replaced, given as words ``section.key=value``.

    >>> change(load_recipe("digits"), ["data.subset=100"]).data.subset
    100
    """
    return build(Recipe, merge(plain(recipe), parse_overrides(overrides)))


def variants(name_or_path: str | Path) -> list[str]:
    """The names of a recipe's variants, in its order.

    >>> variants("digits")
    ['stock', 'bilinear', 'triangle', 'gauss']
    """
    return list(_read(name_or_path).get("variants", {}))


def shipped_recipes() -> dict[str, str]:
    """The names of the recipes in the package, each with the first line of its file."""
    files = [file for file in _SHIPPED.iterdir() if file.name.endswith(".yaml")]
    return {
        file.name.removesuffix(".yaml"): file.read_text().splitlines()[0].lstrip("# ")
        for file in sorted(files, key=lambda file: file.name)
    }


def same_run(first: Recipe, second: Recipe) -> list[str]:
    """In what two recipes differ, in sentences; the machine section may, as it may when a run is resumed."""
    one, other = (dataclasses.replace(recipe, machine=Machine()) for recipe in (first, second))
    return list(differences(one, other))


def _read(name_or_path: str | Path) -> dict[str, Any]:
    name = str(name_or_path)
    if name.endswith((".yaml", ".yml")) or os.sep in name:
        path = Path(name)
        if not path.is_file():
            raise FileNotFoundError(f"recipe must be the name of one or a YAML file, found no file {name}")
        text, stem = path.read_text(), path.stem
    else:
        known = shipped_recipes()
        if name not in known:
            ending = nearest(name, known)
            raise ValueError(f"recipe must be a YAML file or one of {', '.join(known)}, got {name!r}{ending}")
        text, stem = (_SHIPPED / f"{name}.yaml").read_text(), name
    try:
        values = read_yaml(text)
    except yaml.YAMLError as error:
        raise ValueError(f"recipe must be valid YAML, and {name} is not: {error}") from error
    if not isinstance(values, dict):
        raise TypeError(f"recipe must hold sections, got {type(values).__name__} in {name}")
    named = values.get("variants", {})
    if not isinstance(named, dict) or not all(isinstance(each, dict) for each in named.values()):
        raise TypeError(f"variants must be names with sections below each, got {named!r} in {name}")
    return {"name": stem, **values}

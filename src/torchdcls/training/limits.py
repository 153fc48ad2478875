"""What the values of a recipe may be, beyond their types: refused before anything is opened or built."""

from typing import TYPE_CHECKING

from ..interpolation import INTERPOLATIONS
from .values import nearest

if TYPE_CHECKING:
    from .recipe import Recipe


def check_limits(recipe: "Recipe") -> None:
    """Raise ValueError with the key of the first value that can't be right."""
    _check_numbers(recipe)
    machine, trainer, augmentation, dcls = recipe.machine, recipe.trainer, recipe.augmentation, recipe.dcls
    if machine.devices < 1 and machine.devices != -1:
        raise ValueError(f"machine.devices must be at least 1, or -1 for all, got {machine.devices}")
    if trainer.ema is not None and not 0 <= trainer.ema < 1:
        raise ValueError(f"trainer.ema must be from 0 to below 1, or null, got {trainer.ema}")
    if recipe.optimizer.clip is not None and not recipe.optimizer.clip > 0:
        raise ValueError(f"optimizer.clip must be above 0, or null, got {recipe.optimizer.clip}")
    if recipe.model.channels not in (1, 3):
        raise ValueError(f"model.channels must be 3 for colour or 1 for grey, got {recipe.model.channels}")
    for field in ("mean", "std"):
        if len(getattr(augmentation, field)) != recipe.model.channels:
            raise ValueError(
                f"augmentation.{field} must have a number for each of the {recipe.model.channels} channels "
                f"of model.channels, got {getattr(augmentation, field)}"
            )
    if not all(number > 0 for number in augmentation.std):
        raise ValueError(f"augmentation.std must be above 0 for each channel, got {augmentation.std}")
    names = [each.name for each in INTERPOLATIONS]
    if dcls is not None and dcls.interpolation not in names:
        ending = nearest(dcls.interpolation, names)
        raise ValueError(f"dcls.interpolation must be the name of one, got {dcls.interpolation!r}{ending}")


def _check_numbers(recipe: "Recipe") -> None:
    machine, trainer, schedule, dcls = recipe.machine, recipe.trainer, recipe.schedule, recipe.dcls
    augmentation, optimizer = recipe.augmentation, recipe.optimizer
    least: dict[str, tuple[float, float]] = {
        "trainer.epochs": (trainer.epochs, 1),
        "trainer.batch_size": (trainer.batch_size, 1),
        "machine.accumulate": (machine.accumulate, 1),
        "machine.nodes": (machine.nodes, 1),
        "machine.workers": (machine.workers, 0),
        "augmentation.image_size": (augmentation.image_size, 1),
        "augmentation.mixup": (augmentation.mixup, 0),
        "augmentation.cutmix": (augmentation.cutmix, 0),
        "optimizer.lr": (optimizer.lr, 0),
        "optimizer.weight_decay": (optimizer.weight_decay, 0),
        "schedule.cooldown_epochs": (schedule.cooldown_epochs, 0),
        "schedule.warmup_epochs": (schedule.warmup_epochs, 0),
        "seed": (recipe.seed, 0),
    }
    if dcls is not None:
        least |= {"dcls.position_std": (dcls.position_std, 0), "dcls.repulsion": (dcls.repulsion, 0)}
    for name, (number, bound) in least.items():
        if not number >= bound:  # which no NaN is
            raise ValueError(f"{name} must be at least {bound}, got {number}")
    counts = {
        "machine.save_every": machine.save_every,
        "machine.threads": machine.threads,
        "trainer.val_batch_size": trainer.val_batch_size,
    }
    for name, count in counts.items():
        if count is not None and count < 1:
            raise ValueError(f"{name} must be at least 1, or null, got {count}")
    for field in ("hflip", "vflip", "erase", "smoothing", "mix_probability", "mix_switch"):
        if not 0 <= (share := getattr(augmentation, field)) <= 1:
            raise ValueError(f"augmentation.{field} must be from 0 to 1, got {share}")

"""What Lightning runs: one network, its loss, its optimiser and schedule, its running average, its metrics."""

import copy
from typing import Any, cast

import torch
import torch.nn.functional as F
from lightning.pytorch import LightningModule
from timm.data import Mixup
from timm.optim import create_optimizer_v2
from timm.scheduler import create_scheduler_v2
from torch import Tensor, nn
from torch.optim.swa_utils import get_ema_multi_avg_fn

from ..parameter_groups import parameter_groups, register_position_hooks, repulsion_loss
from ..sharing import shared_profiles
from .data import Sets, Stream, make_loader
from .recipe import Recipe
from .sampling import set_seed

Batch = tuple[Tensor, Tensor]
SCHEDULES = ("cosine", "tanh", "step", "multistep", "poly")  # timm's that go by updates
LOOKS_EVERY = 50  # steps; to look at a loss waits for the device, which then has nothing to do


class Training(LightningModule):
    """A run of a recipe.

    Args:
        recipe: says how.
        network: ``(n, channels, height, width) -> (n, classes)``.
        sets: what it is trained and validated on.
        classes: outputs of the network.
    """

    def __init__(self, recipe: Recipe, network: nn.Module, sets: Sets, classes: int) -> None:
        super().__init__()
        self.recipe, self.network, self.sets = recipe, network, sets
        # timm's average would count a parameter that layers share once for each of them; this is torch's, on
        # parameters, of which each comes once.
        self.average = copy.deepcopy(network).requires_grad_(False) if recipe.trainer.ema is not None else None
        self.mixup = _make_mixup(recipe, classes)
        self.steps_done = 0  # since the run began: the place of the run in the order of images
        self.train_total = torch.zeros(2, dtype=torch.float64)  # loss times images, images; this epoch, this process
        self.train_loss = self.val_loss = self.val_top1 = self.val_top5 = float("nan")
        self.rates: dict[str, float] = {}  # of the last update, by group
        self.last_loss: Tensor | float = float("nan")  # of this process
        self._broken: Tensor | None = None  # step and value of the first loss that was not finite; until then -1

    # ---- data

    def train_dataloader(self) -> Any:
        """The training batches of this process."""
        if isinstance(self.sets.training, Stream):
            self.sets.training.set_epoch(self.steps_done // self.steps_per_epoch)
        return self._loader(training=True)

    def val_dataloader(self) -> Any:
        """The validation batches of this process."""
        return self._loader(training=False)

    @property
    def steps_per_epoch(self) -> int:
        """Batches of a process in an epoch."""
        return self.sets.updates(self.recipe) * self.recipe.machine.accumulate

    def _loader(self, training: bool) -> Any:
        samples = self.sets.training if training else self.sets.validation
        trainer = self.trainer
        return make_loader(
            samples, self.recipe, training, trainer.global_rank, trainer.world_size, lambda: self.steps_done
        )

    def on_train_epoch_start(self) -> None:
        """Tell a stream which epoch it reads."""
        if isinstance(self.sets.training, Stream):
            self.sets.training.set_epoch(self.current_epoch)

    # ---- training

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """The loss of a batch."""
        if self.device.type == "cpu" or self.steps_done % LOOKS_EVERY == 0:
            self.check_finite()
        set_seed(self.recipe.seed, self.global_rank, self.steps_done)
        images, targets = self._arrange(batch)
        count = len(images)
        if self.mixup is not None:
            images, targets = self.mixup(images, targets)
        try:
            with shared_profiles(self.network):
                logits = self.network(images)
        except ValueError as error:
            if "must be finite" in str(error):  # what Dcls layers say of positions and widths
                raise FloatingPointError(f"{error}, after update {self.global_step}") from error
            raise
        smoothing = 0.0 if self.mixup is not None else self.recipe.augmentation.smoothing  # mixup has done it
        loss = F.cross_entropy(logits, targets, label_smoothing=smoothing)
        self.steps_done += 1
        self._note_loss(loss.detach(), count)
        dcls = self.recipe.dcls
        if dcls is not None and dcls.repulsion and self.current_epoch >= dcls.repulsion_after:
            loss = loss + dcls.repulsion * repulsion_loss(self.network)
        return loss

    def _note_loss(self, loss: Tensor, count: int) -> None:
        """Add the loss of so many images to the sums, without looking at it."""
        self.last_loss = loss = loss.to(exact(loss.device))
        now = torch.stack([torch.full_like(loss, self.steps_done), loss])
        before = torch.full_like(now, -1) if self._broken is None else self._broken
        self._broken = torch.where(loss.isfinite() | (before[0] >= 0), before, now)
        self.train_total = self.train_total.to(loss.device, exact(loss.device))
        self.train_total += torch.stack([loss * count, torch.full_like(loss, count)])
        self.log("loss", loss, prog_bar=True, logger=False)

    def check_finite(self) -> None:
        """Raise FloatingPointError if the loss of a step so far was not finite."""
        if self._broken is not None and self._broken[0] >= 0:
            step, loss = self._broken.tolist()
            raise FloatingPointError(f"the training loss became {loss} in step {step:.0f}")

    def close_epoch(self) -> None:
        """Sum the loss of the epoch over all processes; called by the history, whose turn is before the module's."""
        self.check_finite()
        total, count = self._reduced(self.train_total).tolist()
        self.train_loss = total / count
        self.train_total.zero_()

    # ---- validation

    def on_validation_epoch_start(self) -> None:
        """Begin to count."""
        self.val_total = torch.zeros(4, dtype=exact(self.device), device=self.device)

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        """Count what is recognised; images with the class -1 only fill up the batch."""
        images, targets = self._arrange(batch)
        network = self.network if self.average is None else self.average
        self.val_total += count_hits(network(images), targets).sum(0)

    def on_validation_epoch_end(self) -> None:
        """Sum over all processes."""
        if self.trainer.sanity_checking:
            return
        loss, top1, top5, count = self._reduced(self.val_total).tolist()
        self.val_loss, self.val_top1, self.val_top5 = loss / count, 100 * top1 / count, 100 * top5 / count
        self.log("top-1", self.val_top1, prog_bar=True, logger=False)

    def _reduced(self, total: Tensor) -> Tensor:
        own = total.to(self.device, exact(self.device), copy=True)
        return cast(Tensor, self.trainer.strategy.reduce(own, reduce_op="sum")).cpu()

    def _arrange(self, batch: Batch) -> Batch:
        images, targets = batch
        if self.recipe.machine.channels_last:
            images = images.contiguous(memory_format=torch.channels_last)
        return images, targets

    # ---- optimisation

    def configure_optimizers(self) -> Any:
        """Timm's optimiser and schedule on our groups, and what positions and the average need after a step."""
        recipe = self.recipe
        optimizer = make_optimizer(recipe, self.network)
        dcls = recipe.dcls
        if dcls is not None:
            _, clamping = register_position_hooks(self.network, optimizer)
            if not dcls.clamp:
                clamping.remove()
        optimizer.register_step_pre_hook(self._note_rates)
        if self.average is not None:
            optimizer.register_step_post_hook(self._update_average)
        scheduler = make_scheduler(recipe, optimizer, self.sets.updates(recipe))
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}

    def lr_scheduler_step(self, scheduler: Any, metric: Any) -> None:
        """Timm's schedules are told the number of updates."""
        scheduler.step_update(num_updates=self.global_step)

    def _note_rates(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        self.rates = {group["name"]: float(group["lr"]) for group in optimizer.param_groups}

    @torch.no_grad()
    def _update_average(self, *_: Any) -> None:
        assert self.average is not None
        assert self.recipe.trainer.ema is not None
        average = get_ema_multi_avg_fn(self.recipe.trainer.ema)
        average(list(self.average.parameters()), list(self.network.parameters()), None)
        for ours, theirs in zip(self.average.buffers(), self.network.buffers(), strict=True):
            ours.copy_(theirs)

    # ---- state

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """The place of the run; a running sum is saved as the sum over all processes."""
        checkpoint["recipe"] = self.recipe.to_yaml()
        checkpoint["place"] = {
            "classes": self.sets.classes,
            "names": list(self.sets.names),
            "steps_done": self.steps_done,
            "train_total": self._reduced(self.train_total),
            "images": self.sets.images,
            "accumulate": self.recipe.machine.accumulate,
            "rates": self.rates,
        }

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Go on from there: the first process with the whole sum."""
        place = checkpoint["place"]
        if place["images"] != self.sets.images:
            raise ValueError(
                f"the training set must hold as many images as when the run began, {place['images']}, "
                f"found {self.sets.images}; begin the run anew"
            )
        if place["accumulate"] != self.recipe.machine.accumulate:
            raise ValueError(
                f"machine.accumulate must be what it was when the run began, {place['accumulate']}, "
                f"got {self.recipe.machine.accumulate}: a run counts its steps"
            )
        self.steps_done, self.rates = place["steps_done"], place["rates"]
        self.train_total = place["train_total"].clone()
        if self.global_rank:
            self.train_total.zero_()


def count_hits(logits: Tensor, targets: Tensor) -> Tensor:
    """For each image its loss, whether it is in the first and in the first five guesses, and 1; ``(n, 4)``.

    A target of -1 gives zeros.

    >>> count_hits(torch.tensor([[0.0, 9.0], [0.0, 9.0]]), torch.tensor([1, -1]))[:, 1:]
    tensor([[1., 1., 1.],
            [0., 0., 0.]], dtype=torch.float64)
    """
    logits = logits.float()
    there = targets >= 0
    loss = F.cross_entropy(logits, targets, reduction="none", ignore_index=-1)
    guesses = logits.topk(min(5, logits.shape[1])).indices == targets.unsqueeze(1)
    columns = [loss, guesses[:, 0] & there, guesses.any(1) & there, there]
    return torch.stack([column.to(exact(logits.device)) for column in columns], dim=1)


def make_optimizer(recipe: Recipe, network: nn.Module) -> torch.optim.Optimizer:
    """Timm's optimiser of that name, with positions in a group of their own."""
    o, dcls = recipe.optimizer, recipe.dcls
    groups = parameter_groups(network, o.lr, o.weight_decay, 5.0 if dcls is None else dcls.position_lr_scale)
    for group in groups:
        if group["name"] == "positions" and dcls is not None:
            group["weight_decay"] = dcls.position_weight_decay
    options: dict[str, Any] = {"betas": o.betas, "eps": o.eps}
    options = {name: option for name, option in options.items() if option is not None}
    try:
        return create_optimizer_v2(groups, opt=o.name, lr=o.lr, momentum=o.momentum, **options)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"optimizer must be one of timm's with values that it takes (optimizer.betas=null and optimizer.eps=null "
            f"leave them out), got {o.name!r}: {error}"
        ) from error


def make_scheduler(recipe: Recipe, optimizer: torch.optim.Optimizer, updates: int) -> Any:
    """Timm's schedule of that name, stepped after each update."""
    s = recipe.schedule
    if s.name not in SCHEDULES:
        raise ValueError(f"schedule.name must be one of {', '.join(SCHEDULES)}, got {s.name!r}")
    scheduler, _ = cast(Any, create_scheduler_v2)(  # whose epochs may be fractions, whatever its types say
        optimizer,
        sched=s.name,
        num_epochs=recipe.trainer.epochs,
        warmup_epochs=s.warmup_epochs,
        warmup_lr=s.warmup_lr,
        min_lr=s.min_lr,
        cooldown_epochs=s.cooldown_epochs,
        decay_epochs=s.decay_epochs,
        decay_rate=s.decay_rate,
        step_on_epochs=False,
        updates_per_epoch=updates,
    )
    return scheduler


def _make_mixup(recipe: Recipe, classes: int) -> Mixup | None:
    a = recipe.augmentation
    if not (a.enabled and (a.mixup or a.cutmix)):
        return None
    return Mixup(
        mixup_alpha=a.mixup,
        cutmix_alpha=a.cutmix,
        prob=a.mix_probability,
        switch_prob=a.mix_switch,
        mode=a.mix_mode,
        label_smoothing=a.smoothing,
        num_classes=classes,
    )


def exact(device: torch.device) -> torch.dtype:
    """What sums over an epoch are kept in."""
    return torch.float32 if device.type == "mps" else torch.float64  # which Apple's GPUs do not have

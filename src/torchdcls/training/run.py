"""One run of a recipe in a folder of its own.

The folder holds recipe.yaml, metrics.csv (a row after each epoch, counted from 1), positions.npz (``epochs``, from 0
before training, and an array ``(epochs, *shape)`` for each position and width), checkpoints/, tensorboard/,
figures/, and, when the run is complete, summary.json.
"""

import json
import logging
import os
import signal
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import TQDMProgressBar
from lightning.pytorch.utilities.exceptions import SIGTERMException
from lightning.pytorch.utilities.rank_zero import rank_zero_only
from torch import nn

from ..layers import DclsNd
from ..surgery import Conversion, is_depthwise
from .checkpoints import AtomicCheckpointIO, Checkpoints, check_space, newest_checkpoint, newest_name
from .data import Sets, Stream, open_sets
from .devices import best_accelerator, check_batch, cluster, count_devices
from .history import Boards, History, finite, replace_file
from .module import Training, make_optimizer, make_scheduler
from .network import build_network
from .recipe import Recipe
from .results import CHECKPOINTS, RECIPE, SUMMARY, other_run
from .sampling import set_seed

# Lightning's remarks on what is meant here, each in the words that it begins with.
_REMARKS = (
    "The '.*_dataloader' does not have many workers",  # machine.workers says how many
    "You are trying to `self.log\\(\\)`",  # the sanity check logs nothing
    "It is recommended to use .*sync_dist=True",  # what is logged has been summed over all processes
    "The number of training batches",  # about loggers of its own, which there are none of
    ".*`isinstance\\(treespec, LeafSpec\\)` is deprecated",  # inside Lightning, with a newer torch
    "GPU available but not used",  # machine.accelerator=cpu
    "MPS available but not used",
    "The `srun` command is available on your system but is not used",
    "Found .* module\\(s\\) in eval mode at the start of training",  # none of ours
    "`lr_scheduler.step\\(\\)`|Detected call of `lr_scheduler.step",  # timm's schedules are told the update
)


def train(recipe: Recipe, folder: Path, resume: bool = False) -> None:
    """Run a recipe to its end.

    Args:
        recipe: of the run.
        folder: of the run; it may not hold another one. A complete run in it is left as it is.
        resume: go on from the newest checkpoint, if there is one, as if the run had never stopped.
    """
    folder = Path(folder)
    if is_complete(folder, recipe):
        return
    _check_folder(folder, recipe, resume)
    recipe_devices = count_devices(recipe)
    check_batch(recipe, recipe_devices)
    with quiet():
        if recipe.machine.threads is not None:
            torch.set_num_threads(recipe.machine.threads)
        set_seed(recipe.seed)
        sets = open_sets(recipe)
        newest = newest_checkpoint(folder / CHECKPOINTS) if resume else None
        if newest and isinstance(sets.training, Stream) and not recipe.data.name.startswith("wds/"):
            warnings.warn(
                f"the run goes on to the bit if {recipe.data.name} gives its images in the same order again, "
                "which no test has shown but for wds/",
                stacklevel=2,
            )
        network, conversion = build_network(recipe, sets.classes, trained=newest is None)
        (folder / CHECKPOINTS).mkdir(parents=True, exist_ok=True)
        if _is_first():
            check_space(folder, checkpoint_size(recipe, network), files=4 if recipe.machine.keep_best else 3)
            replace_file(folder / RECIPE, recipe.to_yaml().encode())
            print(plan(recipe, sets, network, conversion), flush=True)
            if newest:
                print(f"going on from {newest}", flush=True)
        _fit(recipe, sets, network, folder, newest)


def is_complete(folder: Path, recipe: Recipe) -> bool:
    """Whether the folder holds this very run, and to its end."""
    folder = Path(folder)
    return (folder / SUMMARY).is_file() and not other_run(folder, recipe)


def plan(recipe: Recipe, sets: Sets, network: nn.Module, conversion: Conversion | None) -> str:
    """What a run is going to do, in a page of text."""
    devices, updates = count_devices(recipe), sets.updates(recipe)
    world = devices * recipe.machine.nodes
    machine, trainer, o = recipe.machine, recipe.trainer, recipe.optimizer
    kind = machine.accelerator if machine.accelerator != "auto" else best_accelerator()
    lines = [
        f"run         {recipe.name}, variant {recipe.variant}, seed {recipe.seed}",
        f"model       {recipe.model.name}, {_parameters(network):,} parameters, {sets.classes} classes",
        f"data        {sets.images:,} images to train on",
        f"devices     {recipe.machine.nodes} x {devices} {kind}, {trainer.precision}",
        f"batch       {trainer.batch_size:,} images an update = {world} x {machine.accumulate} x "
        f"{trainer.batch_size // world // machine.accumulate} (devices x accumulated steps x images)",
        f"steps       {recipe.epochs} epochs x {updates:,} updates = {recipe.epochs * updates:,}",
        f"schedule    {recipe.schedule.name}, warm-up until update {round(recipe.schedule.warmup_epochs * updates):,}, "
        f"{o.lr:g} at its peak, {recipe.schedule.min_lr:g} at its end, update {trainer.epochs * updates:,}",
    ]
    optimizer = make_optimizer(recipe, network)
    for group in optimizer.param_groups:
        count = sum(parameter.numel() for parameter in group["params"])
        lines.append(
            f"{'group':11} {group['name']}: {count:,} parameters, learning rate {group['lr']:g}, "
            f"weight decay {group['weight_decay']:g}"
        )
    make_scheduler(recipe, optimizer, updates)  # which refuses what it can't make
    return "\n".join(lines) + (f"\n\n{conversion}\n" if conversion is not None else "")


def checkpoint_size(recipe: Recipe, network: nn.Module) -> int:
    """About how many bytes a checkpoint takes: weights, two moments, the running average."""
    return _parameters(network) * 4 * (4 if recipe.trainer.ema is not None else 3)


def _fit(recipe: Recipe, sets: Sets, network: nn.Module, folder: Path, newest: Path | None) -> None:
    machine, trainer = recipe.machine, recipe.trainer
    module = Training(recipe, network, sets, sets.classes)
    history = History(folder)
    checkpoints = Checkpoints(folder / CHECKPOINTS, machine.save_every, machine.keep_best)
    boards = Boards(folder, history, machine.tensorboard, machine.pictures)
    progress = [TQDMProgressBar(refresh_rate=10)] if machine.progress else []
    streamed: dict[str, Any] = (
        {"limit_train_batches": module.steps_per_epoch} if isinstance(sets.training, Stream) else {}
    )
    lightning = Trainer(
        accelerator=machine.accelerator,
        devices=count_devices(recipe),
        num_nodes=machine.nodes,
        precision=trainer.precision,
        max_epochs=recipe.epochs,
        accumulate_grad_batches=machine.accumulate,
        gradient_clip_val=recipe.optimizer.clip,
        deterministic=trainer.deterministic,
        use_distributed_sampler=False,
        plugins=[AtomicCheckpointIO(), *cluster(recipe)],
        callbacks=[history, boards, checkpoints, *progress],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=machine.progress,
        enable_model_summary=False,
        num_sanity_val_steps=1,
        default_root_dir=folder,
        **streamed,
    )
    try:
        lightning.fit(module, ckpt_path=newest)
    except FloatingPointError as error:
        good = newest_name(folder / CHECKPOINTS)
        raise FloatingPointError(
            f"{error}; the run stopped, its last good checkpoint is {good}. A lower optimizer.lr, a longer warm-up or "
            "optimizer.clip=1 often helps"
        ) from error
    except SystemExit as stop:  # what Lightning makes of Ctrl-C and of SIGTERM
        number = signal.SIGTERM if isinstance(stop, SIGTERMException) else signal.SIGINT
        if _is_first():
            print(
                f"stopped by {number.name}; --resume goes on from {newest_name(folder / CHECKPOINTS)}",
                file=sys.stderr,
                flush=True,
            )
        raise SystemExit(128 + number) from None
    if lightning.is_global_zero:
        summary = summarize(recipe, module, history)
        replace_file(folder / SUMMARY, (json.dumps(summary, indent=2) + "\n").encode())
        print(f"top-1 {module.val_top1:.2f}%, top-5 {module.val_top5:.2f}%; {folder} holds the run", flush=True)


def summarize(recipe: Recipe, module: Training, history: History) -> dict[str, Any]:
    """What summary.json says of a run at its end."""
    last = history.rows[-1]
    metrics = {name: finite(float(last[name] or 0.0)) for name in ("train_loss", "val_loss", "val_top1", "val_top5")}
    size, count = kernel_of(module.network)
    return {
        "variant": recipe.variant,
        "seed": recipe.seed,
        "model": recipe.model.name,
        "interpolation": recipe.interpolation,
        "size": size,
        "count": count,
        "parameters": _parameters(module.network),
        "epochs": recipe.epochs,
        **metrics,
        "seconds": round(history.seconds, 1),
        "complete": True,
    }


def kernel_of(network: nn.Module) -> tuple[int | None, int | None]:
    """Side and elements of the kernels of the first Dcls layer; of a stock network's first depthwise one, if any."""
    parts = dict(network.named_modules())
    for part in parts.values():
        if isinstance(part, DclsNd):
            return part.dilated_kernel_size[0], part.kernel_count
    for name, part in parts.items():
        if isinstance(part, nn.Conv2d) and is_depthwise(name, part):
            return part.kernel_size[0], part.kernel_size[0] * part.kernel_size[1]
    return None, None


def _check_folder(folder: Path, recipe: Recipe, resume: bool) -> None:
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"folder must be a folder for the run, got the file {folder}")
    other = other_run(folder, recipe)
    if other:
        raise ValueError(f"{folder} holds another run; {'; '.join(other[:3])}. Choose another --folder")
    if not resume and newest_name(folder / CHECKPOINTS) is not None:
        raise ValueError(f"{folder} holds a part of this run; --resume goes on, another --folder begins anew")
    folder.mkdir(parents=True, exist_ok=True)
    if not os.access(folder, os.W_OK):
        raise PermissionError(f"folder must be writable, and {folder} is not")


def _parameters(network: nn.Module) -> int:
    return sum(parameter.numel() for parameter in network.parameters())


def _is_first() -> bool:
    """Whether this is the first of a run's processes."""
    return int(getattr(rank_zero_only, "rank", 0)) == 0


@contextmanager
def quiet() -> Iterator[None]:
    """Lightning without its advertisements and without remarks on what is meant here."""
    logger = logging.getLogger("lightning.pytorch.utilities.rank_zero")
    level = logger.level
    logger.setLevel(logging.WARNING)
    try:
        with warnings.catch_warnings():
            for remark in _REMARKS:
                warnings.filterwarnings("ignore", message=remark)
            yield
    finally:
        logger.setLevel(level)

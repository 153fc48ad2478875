"""The devices and processes of a run: what is there, what was started, and whether batches can be cut for them."""

import os
from typing import Any

import torch
from lightning.pytorch.plugins.environments import LightningEnvironment, SLURMEnvironment

from .recipe import Recipe


def count_devices(recipe: Recipe) -> int:
    """Devices on each node; refuses what is not there."""
    machine = recipe.machine
    there = torch.cuda.device_count()
    if machine.devices > 0:
        _check_launcher(machine.devices, machine.nodes)
    if machine.accelerator == "gpu" and not there:
        raise ValueError("machine.accelerator=gpu needs a GPU that torch can use, found none; cpu runs without")
    if machine.accelerator == "mps" and not torch.backends.mps.is_available():
        raise ValueError("machine.accelerator=mps needs an Apple GPU that torch can use, found none; cpu runs without")
    if machine.accelerator == "auto" and machine.devices > 1 and not there:
        raise ValueError(
            f"machine.devices={machine.devices} needs GPUs that torch can use, found none; "
            "machine.accelerator=cpu starts so many processes on the CPU"
        )
    gpu = machine.accelerator == "gpu" or (machine.accelerator == "auto" and there > 0)
    if machine.devices == -1:
        return there if gpu else 1
    if gpu and machine.devices > there:
        raise ValueError(f"machine.devices must be at most the number of GPUs, {there}, got {machine.devices}")
    return machine.devices


def cluster(recipe: Recipe) -> list[Any]:
    """Who has started the processes of a run, where Lightning would guess wrong or do more than is wanted.

    In a SLURM job Lightning starts no processes. One that is alone, because nothing was started by srun, has to.
    """
    if _launcher() != "srun":
        return []
    if _started() == 1 and recipe.machine.nodes == 1:
        return [LightningEnvironment()]
    return [SLURMEnvironment(auto_requeue=False)]  # SLURM requeues, and --resume goes on from checkpoints of ours


def _launcher() -> str | None:
    if "TORCHELASTIC_RUN_ID" in os.environ:
        return "torchrun"
    return "srun" if SLURMEnvironment.detect() else None


def _started() -> int:
    """How many processes torchrun or srun has started."""
    name = "WORLD_SIZE" if _launcher() == "torchrun" else "SLURM_STEP_NUM_TASKS"
    return int(os.environ.get(name, "1"))


def _check_launcher(devices: int, nodes: int) -> None:
    """Refuse another number of processes than there are devices: each would train alone, or wait for ever."""
    launcher = _launcher()
    if launcher is None or _started() == devices * nodes or (launcher == "srun" and _started() == nodes == 1):
        return
    raise ValueError(
        f"{launcher} has started {_started()} processes, and the recipe has {nodes} nodes with {devices} devices; "
        "give --nodes and --devices to both"
        + (", the latter to srun as --ntasks-per-node" if launcher == "srun" else "")
    )


def check_batch(recipe: Recipe, devices: int) -> None:
    """Refuse batches that cannot be cut evenly, or not be mixed in pairs."""
    machine, a, size = recipe.machine, recipe.augmentation, recipe.trainer.batch_size
    parts = devices * machine.nodes * machine.accumulate
    if size % parts:
        raise ValueError(
            f"trainer.batch_size must be divisible by devices x nodes x accumulate = "
            f"{devices} x {machine.nodes} x {machine.accumulate} = {parts}, got {size}"
        )
    if a.enabled and (a.mixup or a.cutmix) and size // parts % 2:
        raise ValueError(f"mixup and cutmix need an even number of images on each device and step, got {size // parts}")


def best_accelerator() -> str:
    """What auto means here."""
    return "gpu" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"

"""What a run tells while it runs: metrics.csv, positions.npz, TensorBoard events, kernel pictures, images a second.

The history is part of the checkpoint and the two files are written from it, so that after a crash they hold
every epoch once.
"""

import csv
import io
import math
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor, nn

from ..layers import DclsNd
from ..parameter_groups import placement_parameters
from .module import Training

_KEPT = 4096  # numbers of a parameter to keep for each epoch; of larger ones the first kernels
_KERNELS = 8
_RATES = ("decay", "no_decay", "positions")
COLUMNS = (
    "epoch",
    "step",
    "train_loss",
    "val_loss",
    "val_top1",
    "val_top5",
    "images_per_second",
    *(f"lr_{name}" for name in _RATES),
    "position_movement",
    "width_mean",
)


class History(Callback):
    """Keeps a row of metrics and the positions after each epoch, and writes them to ``folder``."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.rows: list[dict[str, float | int | None]] = []
        self.epochs: list[int] = []
        self.placements: dict[str, list[Tensor]] = {}
        self.start: dict[str, Tensor] = {}
        self.seconds = 0.0
        self._since = self._epoch_since = 0.0
        self._seen = 0

    def on_train_start(self, trainer: Trainer, module: LightningModule) -> None:
        """Note where positions start; files of a resumed run are cut to what its checkpoint knows."""
        assert isinstance(module, Training)
        if not self.epochs:
            found = placement_parameters(module.network)
            self.start = {name: p.detach().cpu().clone() for name, p in found if "position" in name.split(".")}
            self._keep(0, module.network)
        if trainer.is_global_zero:
            self.write()
        self._since = time.monotonic()

    def on_train_epoch_start(self, trainer: Trainer, module: LightningModule) -> None:
        """Start the clock."""
        self._epoch_since, self._seen = time.monotonic(), 0

    def on_train_batch_end(
        self, trainer: Trainer, module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Count images."""
        if not self._epoch_since:  # resumed within an epoch
            self._epoch_since = time.monotonic()
        self._seen += len(batch[0]) * trainer.world_size
        module.log("images/s", self._rate(), prog_bar=True, logger=False)

    def on_validation_start(self, trainer: Trainer, module: LightningModule) -> None:
        """Validation does not count in images a second."""
        self._epoch_rate = self._rate()

    def on_train_epoch_end(self, trainer: Trainer, module: LightningModule) -> None:
        """Add the epoch."""
        assert isinstance(module, Training)
        epoch = trainer.current_epoch + 1
        module.close_epoch()
        self.rows.append(
            {
                "epoch": epoch,
                "step": trainer.global_step,
                "train_loss": module.train_loss,
                "val_loss": module.val_loss,
                "val_top1": module.val_top1,
                "val_top5": module.val_top5,
                "images_per_second": round(self._epoch_rate, 1),
                **{f"lr_{name}": module.rates.get(name) for name in _RATES},
                "position_movement": movement(module.network, self.start),
                "width_mean": mean_width(module.network),
            }
        )
        self._keep(epoch, module.network)
        now = time.monotonic()
        self.seconds, self._since = self.seconds + now - self._since, now
        if trainer.is_global_zero:
            self.write()

    def write(self) -> None:
        """Write metrics.csv and positions.npz, each in one step."""
        text = io.StringIO(newline="")
        writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(self.rows)
        replace_file(self.folder / "metrics.csv", text.getvalue().encode())
        packed = io.BytesIO()
        arrays = {name: torch.stack(kept).numpy() for name, kept in self.placements.items()}
        np.savez_compressed(packed, allow_pickle=False, epochs=np.array(self.epochs), **arrays)
        replace_file(self.folder / "positions.npz", packed.getvalue())

    def state_dict(self) -> dict[str, Any]:
        """All of it."""
        return {
            "rows": self.rows,
            "epochs": self.epochs,
            "placements": self.placements,
            "start": self.start,
            "seconds": self.seconds,
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from there."""
        for name, kept in state_dict.items():
            setattr(self, name, kept)

    def _keep(self, epoch: int, network: nn.Module) -> None:
        self.epochs.append(epoch)
        for name, parameter in placement_parameters(network):
            kept = parameter.detach()
            if kept.numel() > _KEPT:
                kept = kept[:, :_KERNELS]
            self.placements.setdefault(name, []).append(kept.float().cpu().clone())

    def _rate(self) -> float:
        return self._seen / max(time.monotonic() - self._epoch_since, 1e-9)


class Boards(Callback):
    """TensorBoard events and kernel pictures."""

    def __init__(self, folder: Path, history: History, events: bool, pictures: bool) -> None:
        self.folder, self.history, self.events, self.pictures = folder, history, events, pictures
        self.writer: Any = None

    def on_train_start(self, trainer: Trainer, module: LightningModule) -> None:
        """Open; what an interrupted run wrote after its checkpoint is taken back."""
        if not trainer.is_global_zero:
            return
        if self.events:
            from torch.utils.tensorboard import SummaryWriter

            self.writer = SummaryWriter(str(self.folder / "tensorboard"), purge_step=trainer.global_step + 1)
        if trainer.global_step == 0:
            self._draw(trainer, module, 0)

    def on_train_batch_end(
        self, trainer: Trainer, module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Loss and learning rates, every 20th update."""
        step = trainer.global_step
        if self.writer is not None and step % 20 == 0 and not trainer.fit_loop._should_accumulate():
            assert isinstance(module, Training)
            self.writer.add_scalar("train/loss", float(module.last_loss), step)
            for name, rate in module.rates.items():
                self.writer.add_scalar(f"lr/{name}", rate, step)

    def on_train_epoch_end(self, trainer: Trainer, module: LightningModule) -> None:
        """The row of the epoch, histograms and pictures."""
        if not trainer.is_global_zero:
            return
        step = trainer.global_step
        if self.writer is not None:
            assert isinstance(module, Training)
            for name, number in self.history.rows[-1].items():
                if number is not None and name not in ("epoch", "step"):
                    self.writer.add_scalar(f"epoch/{name}", number, step)
            for name, parameter in placement_parameters(module.network):
                self.writer.add_histogram(f"placement/{name}", parameter.detach().float().cpu(), step)
        self._draw(trainer, module, trainer.current_epoch + 1)
        if self.writer is not None:
            self.writer.flush()

    def teardown(self, trainer: Trainer, module: LightningModule, stage: str) -> None:
        """Close."""
        if self.writer is not None:
            self.writer.close()

    def _draw(self, trainer: Trainer, module: LightningModule, epoch: int) -> None:
        assert isinstance(module, Training)
        if not self.pictures or not has_kernels(module.network):
            return
        from .. import plots

        figure = plots.new_figure(8, 5)
        with torch.no_grad():
            plots.draw_model(figure, module.network)
        path = self.folder / "figures" / f"kernels_epoch_{epoch:03}.png"
        path.parent.mkdir(exist_ok=True)
        figure.savefig(path, dpi=100)
        if self.writer is not None:
            from PIL import Image

            pixels = np.asarray(Image.open(path).convert("RGB"))
            self.writer.add_image("kernels", pixels, trainer.global_step, dataformats="HWC")


def movement(network: nn.Module, start: dict[str, Tensor]) -> float | None:
    """The mean distance of elements from where they started, in taps; None without Dcls layers."""
    moved = [
        (parameter.detach().cpu() - start[name]).square().sum(0).sqrt().flatten()
        for name, parameter in placement_parameters(network)
        if name in start
    ]
    return torch.cat(moved).mean().item() if moved else None


def mean_width(network: nn.Module) -> float | None:
    """The mean width of elements, in taps; None without widths."""
    layers = {id(layer.sigma): layer for layer in network.modules() if isinstance(layer, DclsNd)}
    widths = [layer.interpolation.width(layer.sigma.detach()) for layer in layers.values() if layer.sigma is not None]
    return torch.cat([width.flatten().float().cpu() for width in widths]).mean().item() if widths else None


def has_kernels(network: nn.Module) -> bool:
    """Whether there is anything to draw."""
    from ..surgery import is_depthwise

    return any(isinstance(part, DclsNd) or is_depthwise(name, part) for name, part in network.named_modules())


def replace_file(path: Path, content: bytes) -> None:
    """Write a file so that it is at any moment whole."""
    aside = path.with_name(path.name + ".writing")
    with aside.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(aside, path)


def finite(number: float) -> float | None:
    """A number, or None for one that JSON does not have."""
    return number if math.isfinite(number) else None

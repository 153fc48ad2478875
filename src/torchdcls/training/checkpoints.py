"""Checkpoints that a crash cannot spoil: written aside, then renamed; with a digest, so that damage is found.

A run keeps ``last.ckpt`` and ``previous.ckpt``. A file is what ``torch.save`` writes followed by its SHA-256;
``torch.load`` reads it as it is, but would not notice a flipped bit.
"""

import contextlib
import errno
import hashlib
import os
import shutil
import warnings
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.plugins.io import CheckpointIO

from .module import Training

_MARK = b"torchdcls sha256 "
_TRAILER = len(_MARK) + hashlib.sha256().digest_size
LAST, PREVIOUS, BEST = "last.ckpt", "previous.ckpt", "best.ckpt"


class DamagedCheckpointError(ValueError):
    """A checkpoint is not what was written."""


class _Hashed:
    """A file that keeps the digest of what went through it; torch hides what a write raised, so it is kept, too."""

    def __init__(self, file: Any) -> None:
        self.file, self.digest = file, hashlib.sha256()
        self.error: OSError | None = None

    def write(self, part: bytes) -> int:
        try:
            self.digest.update(part)
            return int(self.file.write(part))
        except OSError as error:
            self.error = error
            raise

    def flush(self) -> None:
        self.file.flush()


def write_checkpoint(checkpoint: dict[str, Any], path: Path) -> None:
    """Write a checkpoint so that ``path`` is at any moment what it was before or what it is after.

    What was there before becomes ``previous.ckpt`` beside it, unless it is damaged: then that stays as it is.
    """
    aside = path.with_name(path.name + ".writing")
    try:
        with aside.open("wb") as file:
            hashed = _Hashed(file)
            try:
                torch.save(checkpoint, hashed)  # type: ignore[arg-type]
            except RuntimeError:
                if hashed.error is None:
                    raise
                raise hashed.error from None
            file.write(_MARK + hashed.digest.digest())
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        aside.unlink(missing_ok=True)
        there = newest_name(path.parent)
        raise OSError(
            error.errno,
            f"the checkpoint {path} could not be written: {error.strerror}; "
            + (f"the last good one is {there}, to go on from with --resume" if there else "there is none before it"),
        ) from error
    if path.exists():
        with contextlib.suppress(DamagedCheckpointError):
            check_digest(path)
            os.replace(path, path.with_name(PREVIOUS))
    os.replace(aside, path)
    _sync_folder(path.parent)


def read_checkpoint(path: Path) -> dict[str, Any]:
    """Read a checkpoint: weights and plain values only, never code; DamagedCheckpointError where it is damaged."""
    check_digest(path)
    loaded: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    return loaded


def check_digest(path: Path) -> None:
    """Raise DamagedCheckpointError unless a file is what was written."""
    with path.open("rb") as file:
        digest, left = hashlib.sha256(), path.stat().st_size - _TRAILER
        while left > 0 and (part := file.read(min(left, 2**20))):
            digest.update(part)
            left -= len(part)
        if left or file.read() != _MARK + digest.digest():
            raise DamagedCheckpointError(f"checkpoint {path} is damaged: its digest does not fit its content")


def newest_checkpoint(folder: Path) -> Path | None:
    """The newest checkpoint in ``folder`` that is whole; warns of a damaged one and falls back to the one before."""
    damaged = []
    for path in (folder / LAST, folder / PREVIOUS):
        if path.exists():
            try:
                check_digest(path)
            except DamagedCheckpointError as error:
                damaged.append(str(error))
                continue
            if damaged:
                warnings.warn(f"{damaged[0]}; going on from {path}, the one before", stacklevel=2)
            return path
    if damaged:
        best = folder / BEST
        way = f"copy {best} to {folder / LAST} to go on from there" if best.exists() else "no other is left"
        raise DamagedCheckpointError(f"{'; '.join(damaged)}; {way}, or begin the run in another folder")
    return None


def newest_name(folder: Path) -> Path | None:
    """The newest checkpoint in ``folder``, unread."""
    return next((path for path in (folder / LAST, folder / PREVIOUS) if path.exists()), None)


def check_space(folder: Path, size: int, files: int) -> None:
    """Raise OSError unless the disk has room for so many checkpoints of about ``size`` bytes."""
    free = shutil.disk_usage(folder).free
    if free < files * size:
        raise OSError(
            errno.ENOSPC,
            f"{folder} must be on a disk with room for {files} checkpoints of {size / 1e6:,.0f} MB, "
            f"got {free / 1e6:,.0f} MB; free some, or choose another --folder",
        )


class AtomicCheckpointIO(CheckpointIO):
    """How Lightning writes and reads checkpoints."""

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None) -> None:
        """Write, or raise OSError with the name of the last good one."""
        write_checkpoint(checkpoint, Path(path))

    def load_checkpoint(self, path: Any, map_location: Any = None, weights_only: bool | None = None) -> dict[str, Any]:
        """Read to the CPU, whatever is asked for; Lightning moves each tensor to its place."""
        return read_checkpoint(Path(path))

    def remove_checkpoint(self, path: Any) -> None:
        """Remove a file."""
        Path(path).unlink(missing_ok=True)


class Checkpoints(Callback):
    """Saves before the first step, every ``every`` updates, and after each epoch; keeps the best besides."""

    def __init__(self, folder: Path, every: int | None, keep_best: bool) -> None:
        self.folder, self.every, self.keep_best = folder, every, keep_best
        self.best = float("-inf")
        self._saved_at = -1

    def on_train_start(self, trainer: Trainer, module: LightningModule) -> None:
        """Find out whether a checkpoint can be written before hours go into what it would hold."""
        if trainer.global_step == 0:
            self._save(trainer, module)
        self._saved_at = trainer.global_step

    def on_train_batch_end(
        self, trainer: Trainer, module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Save every so many updates; the last of an epoch is saved when the epoch has been validated."""
        step = trainer.global_step
        if self.every and step % self.every == 0 and step != self._saved_at and not trainer.is_last_batch:
            self._save(trainer, module)

    def on_train_epoch_end(self, trainer: Trainer, module: LightningModule) -> None:
        """Save, and keep the best."""
        assert isinstance(module, Training)
        better = self.keep_best and module.val_top1 > self.best
        if better:
            self.best = module.val_top1
        self._save(trainer, module)
        if better and trainer.is_global_zero:
            _copy(self.folder / LAST, self.folder / BEST)

    def _save(self, trainer: Trainer, module: LightningModule) -> None:
        assert isinstance(module, Training)
        module.check_finite()
        if not all(bool(parameter.isfinite().all()) for parameter in module.parameters()):
            raise FloatingPointError(f"a parameter is not finite after update {trainer.global_step}")
        trainer.save_checkpoint(self.folder / LAST, weights_only=False)
        self._saved_at = trainer.global_step

    def state_dict(self) -> dict[str, Any]:
        """The best top-1 so far."""
        return {"best": self.best}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from there."""
        self.best = state_dict["best"]


def _copy(path: Path, other: Path) -> None:
    """Checkpoints are replaced, never changed, so a second name is as good as a copy where the disk has that."""
    aside = other.with_name(other.name + ".writing")
    aside.unlink(missing_ok=True)
    try:
        os.link(path, aside)
    except OSError:
        shutil.copyfile(path, aside)
    os.replace(aside, other)


def _sync_folder(folder: Path) -> None:
    with contextlib.suppress(OSError):  # not every system can
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)

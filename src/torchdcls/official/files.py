"""Official checkpoints on disk: read without running code from them, converted, written."""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .conversion import from_official


def convert(
    source: Path | str,
    target: Path | str,
    *,
    version: str | None = None,
    dilated_kernel_size: int | Sequence[int] | None = None,
    v0_width_first: bool = False,
) -> dict[str, Tensor]:
    """Write the native state dict of an official checkpoint; returns what was written.

    Args:
        source: what a training program saved.
        target: where to write. Files that end in ``.safetensors`` are such, here and there; all others torch's.
        version: as in :func:`from_official`.
        dilated_kernel_size: likewise.
        v0_width_first: likewise.
    """
    target = Path(target)
    converted = from_official(
        load(source), version=version, dilated_kernel_size=dilated_kernel_size, v0_width_first=v0_width_first
    )
    others = [key for key, value in converted.items() if not isinstance(value, Tensor)]
    if others:
        raise ValueError(f"{source} must hold tensors alone beside its layers, got {', '.join(others)}")
    # Each tensor by itself: safetensors refuses those that share memory.
    tensors = {key: value.detach().clone(memory_format=torch.contiguous_format) for key, value in converted.items()}
    if target.suffix == ".safetensors":
        from safetensors.torch import save_file

        save_file(tensors, target, metadata={"format": "pt"})
    else:
        torch.save(tensors, target)
    return tensors


def load(path: Path | str) -> dict[str, Any]:
    """What a checkpoint holds, without running any code from it."""
    if Path(path).suffix == ".safetensors":
        from safetensors.torch import load_file

        return load_file(path)
    try:
        # Training programs save their arguments too: a Namespace, which is as harmless as a dict.
        with torch.serialization.safe_globals([argparse.Namespace]):
            loaded = torch.load(path, map_location="cpu", weights_only=True)
    except OSError:
        raise
    except Exception as error:  # bytes that are no checkpoint make torch.load raise almost anything
        raise ValueError(
            f"{path} must be a file of torch.save with tensors, numbers and text alone, so that no code runs from it; "
            "save model.state_dict() in the program that trained it"
        ) from error
    if not isinstance(loaded, dict):
        raise ValueError(f"{path} must hold a dict, got {type(loaded).__name__}")
    return loaded

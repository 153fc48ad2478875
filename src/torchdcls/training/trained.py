"""Trained networks from the files that runs and exports leave: checkpoints, fused models, ONNX.

Each file says by itself which recipe it comes from.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from ..layers import DclsNd
from ..surgery import fuse
from .checkpoints import newest_checkpoint, read_checkpoint
from .network import build_network
from .recipe import Recipe, recipe_from_yaml

KEY = "torchdcls"  # of what we write into the metadata of a file


@dataclass(frozen=True)
class Trained:
    """A trained network and where it comes from.

    Attributes:
        predict: ``(n, channels, height, width) -> (n, classes)``; a torch module, or a function that runs ONNX.
        recipe: of its run.
        classes: outputs.
        names: of the classes, where the data has them.
        what: the file in words.
    """

    predict: nn.Module | Callable[[Tensor], Tensor]
    recipe: Recipe
    classes: int
    names: tuple[str, ...]
    what: str

    def metadata(self) -> dict[str, str]:
        """What is written into a file for :func:`load_trained` to read."""
        content = {"recipe": self.recipe.to_yaml(), "classes": self.classes, "names": list(self.names)}
        return {KEY: json.dumps(content)}


def load_trained(path: Path) -> Trained:
    """Load a run folder's newest checkpoint, a .ckpt, a fused .safetensors, or an .onnx file."""
    path = Path(path)
    if path.is_dir():
        folder = path / "checkpoints"
        newest = newest_checkpoint(folder) if folder.is_dir() else None
        if newest is None:
            raise FileNotFoundError(f"model must be a run folder with checkpoints, or a file, found none in {path}")
        path = newest
    if not path.is_file():
        raise FileNotFoundError(f"model must be a run folder, or a .ckpt, .safetensors or .onnx file, found no {path}")
    loaders = {".ckpt": _from_checkpoint, ".safetensors": _from_safetensors, ".onnx": _from_onnx}
    if path.suffix not in loaders:
        raise ValueError(f"model must be a run folder, or a .ckpt, .safetensors or .onnx file, got {path}")
    return loaders[path.suffix](path)


def _from_checkpoint(path: Path) -> Trained:
    checkpoint = read_checkpoint(path)
    try:
        recipe = recipe_from_yaml(checkpoint["recipe"])
        classes, names = checkpoint["place"]["classes"], tuple(checkpoint["place"]["names"])
    except KeyError as error:
        raise ValueError(
            f"checkpoint {path} must come from a run of torchdcls train, got one without {error}"
        ) from error
    network, _ = build_network(recipe, classes, trained=False)
    prefix = "network." if recipe.trainer.ema is None else "average."
    state = {
        name.removeprefix(prefix): tensor
        for name, tensor in checkpoint["state_dict"].items()
        if name.startswith(prefix)
    }
    network.load_state_dict(state)
    averaged = "" if recipe.trainer.ema is None else ", averaged weights"
    what = f"{path} (epoch {checkpoint['epoch'] + 1}, update {checkpoint['global_step']}{averaged})"
    return Trained(network.eval(), recipe, classes, names, what)


def _from_safetensors(path: Path) -> Trained:
    from safetensors import safe_open

    with safe_open(path, "pt") as file:
        recipe, classes, names = _read_metadata(file.metadata(), path)
        state = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a mapping
    network, _ = build_network(recipe, classes, trained=False)
    fuse_if_needed(network).load_state_dict(state)
    return Trained(network.eval(), recipe, classes, names, f"{path} (fused)")


def _from_onnx(path: Path) -> Trained:
    import onnxruntime

    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    recipe, classes, names = _read_metadata(session.get_modelmeta().custom_metadata_map, path)
    return Trained(OnnxNetwork(session), recipe, classes, names, f"{path} (ONNX)")


class OnnxNetwork(nn.Module):
    """An ONNX file as a module without parameters."""

    def __init__(self, session: Any) -> None:
        super().__init__()
        self.session = session
        (self.input,) = (entry.name for entry in session.get_inputs())

    def forward(self, images: Tensor) -> Tensor:
        """Run it on the CPU."""
        (outputs,) = self.session.run(None, {self.input: images.float().cpu().numpy()})
        return torch.from_numpy(outputs).to(images.device)


def fuse_if_needed(network: nn.Module) -> nn.Module:
    """Fuse, unless the network is a stock one, in place."""
    return fuse(network) if any(isinstance(part, DclsNd) for part in network.modules()) else network


def _read_metadata(metadata: dict[str, str] | None, path: Path) -> tuple[Recipe, int, tuple[str, ...]]:
    if not metadata or KEY not in metadata:
        raise ValueError(f"{path} must come from torchdcls export, which writes the recipe into it, found none")
    content = cast(dict[str, Any], json.loads(metadata[KEY]))
    return recipe_from_yaml(content["recipe"]), content["classes"], tuple(content["names"])

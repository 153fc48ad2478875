"""Export a trained network as a plain one: every Dcls layer fused to a convolution.

    torchdcls export runs/digits/gauss-0 --folder exported

writes model.safetensors, for torch, and model.onnx, both checked against the network that they come from. In
python, `torchdcls.training.trained.load_trained("exported/model.safetensors").predict` is the network.
"""

import argparse
import copy
import warnings
from pathlib import Path
from typing import Any


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of ``torchdcls export``."""
    parser.add_argument("model", type=Path, help="a run folder or a .ckpt file")
    parser.add_argument("--folder", type=Path, help="where to write; `exported` in the run's folder unless given")
    parser.add_argument("--no-onnx", action="store_true", help="write model.safetensors alone")


def run(arguments: argparse.Namespace) -> int:
    """Export and say how far the files are from the network."""
    from .results import CHECKPOINTS
    from .trained import load_trained

    trained = load_trained(arguments.model)
    if arguments.model.suffix in (".safetensors", ".onnx"):
        raise ValueError(f"model must be a run folder or a .ckpt file, got {arguments.model}, which is fused already")
    model = arguments.model
    run_folder = model if model.is_dir() else model.parent.parent if model.parent.name == CHECKPOINTS else model.parent
    folder = arguments.folder or run_folder / "exported"
    for name, difference in export(trained, folder, onnx=not arguments.no_onnx).items():
        checked = "not run, for want of onnxruntime" if difference is None else f"differs by at most {difference:.1e}"
        print(f"{folder / name}: {checked}")
    return 0


def export(trained: Any, folder: Path, onnx: bool = True) -> dict[str, float | None]:
    """Write the files; returns for each how far its outputs are from the network's, as a share of the largest.

    Args:
        trained: a :class:`~torchdcls.training.trained.Trained` from a checkpoint.
        folder: where to write.
        onnx: whether to write model.onnx, too.
    """
    import torch
    from safetensors.torch import save_file

    from .trained import fuse_if_needed, load_trained

    recipe = trained.recipe
    size = recipe.augmentation.image_size
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(3, recipe.model.channels, size, size, generator=generator)
    with torch.no_grad():
        expected = trained.predict(images)
        fused = fuse_if_needed(copy.deepcopy(trained.predict)).eval()
        folder.mkdir(parents=True, exist_ok=True)
        state = {name: tensor.contiguous() for name, tensor in fused.state_dict().items()}
        save_file(state, folder / "model.safetensors", trained.metadata())
        files: dict[str, float | None] = {"model.safetensors": None}
        if onnx:
            _write_onnx(fused, images, folder / "model.onnx", trained.metadata())
            files["model.onnx"] = None
        for name in files:
            try:
                outputs = load_trained(folder / name).predict(images)
            except ModuleNotFoundError as error:
                if error.name != "onnxruntime":
                    raise
                continue
            files[name] = ((outputs - expected).abs().max() / expected.abs().max()).item()
            if not files[name] < 1e-3:  # type: ignore[operator]
                raise ValueError(f"{folder / name} must compute what the network does, differs by {files[name]:.1e}")
    return files


def _write_onnx(fused: Any, images: Any, path: Path, metadata: dict[str, str]) -> None:
    import onnx
    import torch

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's exporter warns of its own parts
        torch.onnx.export(
            fused,
            (images[:2],),
            path,
            input_names=["images"],
            output_names=["logits"],
            dynamic_shapes=({0: torch.export.Dim("batch")},),
            dynamo=True,
            external_data=False,
            verbose=False,
        )
    model = onnx.load(path)
    onnx.helper.set_model_props(model, metadata)
    onnx.checker.check_model(model)
    onnx.save(model, path)

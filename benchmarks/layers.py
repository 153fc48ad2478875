"""Layers: against the authors' own, and what they cost with size, count, channels and batch."""

import logging
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from torchdcls import Dcls1d, Dcls2d, Dcls3d
from torchdcls.layers import DclsNd

from .convolution import without_result
from .harness import Comparison, Run, case

LAYERS: dict[int, type[DclsNd]] = {1: Dcls1d, 2: Dcls2d, 3: Dcls3d}
VERSIONS = {"gauss": "gauss", "triangle": "max"}  # our interpolation -> the authors' version
# channels, groups, size on every axis, count, input
PROBLEMS: list[tuple[int, int, int, int, tuple[int, ...]]] = [
    (64, 64, 101, 20, (8, 64, 1000)),
    (96, 96, 23, 26, (4, 96, 56, 56)),
    (384, 384, 17, 26, (4, 384, 14, 14)),
    (32, 1, 7, 9, (4, 32, 28, 28)),
    (16, 16, 7, 20, (1, 16, 16, 16, 16)),
]


def native(channels: int, groups: int, size: int, count: int, axes: int, interpolation: str = "gauss") -> DclsNd:
    """One of our layers, some way into its training."""
    torch.manual_seed(0)
    padding = size // 2
    layer = LAYERS[axes](channels, channels, count, size, padding=padding, groups=groups, interpolation=interpolation)
    # On odd eighths of a tap no element lies on a kink of the triangle, where rounding decides which slope it has.
    with torch.no_grad():
        layer.position.copy_((torch.randn_like(layer.position) * size / 2).round() / 4 + 1 / 8)
    if layer.sigma is not None:
        nn.init.constant_(layer.sigma, 0.3)
    return layer


def official(layer: DclsNd, version: str) -> Any:
    """The authors' layer with the same values; its positions come in the opposite order of axes."""
    logging.disable(logging.WARNING)
    import DCLS.construct.modules as theirs

    new = getattr(theirs, f"Dcls{layer.axes}d")(
        layer.in_channels,
        layer.out_channels,
        layer.kernel_count,
        padding=layer.padding,
        dilated_kernel_size=layer.dilated_kernel_size,
        groups=layer.groups,
        version=version,
    )
    assert layer.sigma is not None
    assert layer.bias is not None
    values = {"weight": layer.weight, "P": layer.position.flip(0), "SIG": layer.sigma.flip(0), "bias": layer.bias}
    for name, value in values.items():
        setattr(new, name, nn.Parameter(value.detach().clone()))
    return new


def forward_and_backward(layer: Any, shape: tuple[int, ...], device: torch.device) -> Run:
    """The output and the gradients of input, weights, positions, widths and bias, positions in our order."""
    layer = layer.to(device)
    generator = torch.Generator().manual_seed(0)
    x, direction = (torch.randn(shape, generator=generator).to(device) for _ in range(2))
    x.requires_grad_()
    ours = isinstance(layer, DclsNd)
    names = ("weight", "position", "sigma", "bias") if ours else ("weight", "P", "SIG", "bias")
    leaves = [x, *(parameter for name in names if (parameter := getattr(layer, name, None)) is not None)]

    def run() -> Sequence[Tensor]:
        y = layer(x)
        gradients = torch.autograd.grad(y, leaves, direction)
        return [y.detach(), *(g if ours or i not in (2, 3) else g.flip(0) for i, g in enumerate(gradients))]

    return run


@case
def layer(device: torch.device) -> Iterator[Comparison]:
    for channels, groups, size, count, shape in PROBLEMS:
        axes = len(shape) - 2
        for interpolation, version in VERSIONS.items():
            ours = native(channels, groups, size, count, axes, interpolation)
            kind = "depthwise" if groups == channels else "dense"
            yield Comparison(
                f"Dcls{axes}d, {kind}, {'x'.join([str(size)] * axes)} / {count}, {interpolation}, "
                f"on {'x'.join(map(str, shape))}, forward + backward",
                {
                    "dcls 0.1.1": forward_and_backward(official(ours, version), shape, device),
                    "torchdcls": forward_and_backward(ours, shape, device),
                },
            )


@case
def layer_cost(device: torch.device) -> Iterator[Comparison]:
    # One number at a time; the peer is torch's own layer of the same size, which learns every tap.
    base = {"batch": 8, "channels": 96, "size": 23, "count": 26}
    varied = {"batch": (1, 8, 32), "channels": (24, 96, 384), "size": (7, 23, 51), "count": (6, 26, 104)}
    for name, values in varied.items():
        for value in values:
            numbers = base | {name: value}
            channels, size = numbers["channels"], numbers["size"]
            shape = (numbers["batch"], channels, 56, 56)
            plain = nn.Conv2d(channels, channels, size, padding=size // 2, groups=channels)
            ours = native(channels, channels, size, numbers["count"], 2)
            yield Comparison(
                f"{name} {value}: Dcls2d {size}x{size} / {numbers['count']} on {'x'.join(map(str, shape))}",
                {
                    "torch.nn.Conv2d": without_result(plain_step(plain, shape, device)),
                    "torchdcls.Dcls2d": without_result(forward_and_backward(ours, shape, device)),
                },
                repeats=3,
            )


def plain_step(conv: nn.Conv2d, shape: tuple[int, ...], device: torch.device) -> Run:
    """Forward and backward of a layer of torch's."""
    conv = conv.to(device)
    x, direction = (torch.randn(shape, device=device) for _ in range(2))
    x.requires_grad_()

    def run() -> Sequence[Tensor]:
        return torch.autograd.grad(conv(x), [x, *conv.parameters()], direction)

    return run

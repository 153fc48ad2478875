"""The dense kernel, forward and backward: against the authors' package, and how the cost grows."""

import dataclasses
import logging
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from torchdcls import dense_kernel

from .harness import Comparison, Run, case


@dataclasses.dataclass(frozen=True)
class Elements:
    """Elements of depthwise 2-D kernels, as a layer holds them after some training."""

    weight: Tensor
    position: Tensor
    sigma: Tensor
    direction: Tensor
    size: tuple[int, int]

    @classmethod
    def draw(cls, device: torch.device, channels: int, size: int, count: int) -> "Elements":
        torch.manual_seed(0)
        weight = torch.randn(channels, 1, count, device=device, requires_grad=True)
        position = (torch.randn(2, channels, 1, count, device=device) * size / 8).requires_grad_()
        sigma = (torch.rand(2, channels, 1, count, device=device) * 0.5).requires_grad_()
        return cls(weight, position, sigma, torch.randn(channels, 1, size, size, device=device), (size, size))

    @property
    def leaves(self) -> list[Tensor]:
        return [self.weight, self.position, self.sigma]


def _ours(elements: Elements) -> Run:
    def run() -> Sequence[Tensor]:
        kernel = dense_kernel(elements.weight, elements.position, elements.sigma, elements.size)
        return [kernel.detach(), *torch.autograd.grad(kernel, elements.leaves, elements.direction)]

    return run


def _official(elements: Elements) -> Run:
    logging.disable(logging.WARNING)
    from DCLS.construct.modules import ConstructKernel2d

    channels, _, count = elements.weight.shape
    construct = ConstructKernel2d(channels, channels, channels, count, elements.size, "gauss")

    def run() -> Sequence[Tensor]:
        kernel = construct(elements.weight, elements.position.flip(0), elements.sigma.flip(0))
        return [kernel.detach(), *torch.autograd.grad(kernel, elements.leaves, elements.direction)]

    return run


@case
def dense_kernel_against_official(device: torch.device) -> Iterator[Comparison]:
    for channels, target in ((96, 100.0), (768, 250.0)):
        elements = Elements.draw(device, channels, size=23, count=26)
        yield Comparison(
            f"{channels} channels, 23x23, 26 elements, gauss, forward + backward",
            {"dcls 0.1.1": _official(elements), "torchdcls": _ours(elements)},
            targets={"torchdcls": target},
            memory_targets={"torchdcls": 1 / 20},
        )


@case
def dense_kernel_scaling(device: torch.device) -> Iterator[Comparison]:
    # Twice the channels, elements or side: the factors grow twofold each; the matrix product of the
    # last step grows with the side squared.
    base = {"channels": 192, "size": 23, "count": 26}
    for name, values in (("channels", (96, 384, 768)), ("count", (13, 52, 104)), ("size", (11, 47, 95))):
        for value in values:
            problem = base | {name: value}
            yield Comparison(
                f"{problem['channels']} channels, {problem['size']}x{problem['size']}, {problem['count']} elements",
                {"torchdcls": _ours(Elements.draw(device, **problem))},
            )

"""Convolution against torch's own: the shapes of ConvNeXt-T, one and three dimensions, and a grid of problems."""

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from torchdcls import convolve
from torchdcls.convolution import BACKENDS
from torchdcls.convolution.problem import Problem

from .harness import Comparison, Run, case

TORCH = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}
# ConvNeXt-T at 224x224: channels, side of the map, and how many blocks have it.
STAGES = ((96, 56, 3), (192, 28, 3), (384, 14, 9), (768, 7, 3))


def problem(
    batch: int, channels: tuple[int, int], groups: int, spatial: tuple[int, ...], size: tuple[int, ...]
) -> Problem:
    """A problem that keeps its size, forward and backward."""
    pairs = tuple(((k - 1) // 2, k // 2) for k in size)
    ones = (1,) * len(size)
    return Problem(batch, *channels, groups, spatial, size, pairs, ones, torch.float32, False, "cpu", True, True)


def depthwise(channels: int, side: int, size: int, batch: int = 8) -> Problem:
    """A square depthwise problem."""
    return problem(batch, (channels, channels), channels, (side, side), (size, size))


def contender(posed: Problem, device: torch.device, backend: str | None, backward: bool = True) -> Run:
    """Solve a problem by torch (None) or by a backend of `convolve`."""

    def solve(x: Tensor, kernel: Tensor) -> Tensor:
        if backend is None:
            padding = [pair[0] for pair in posed.padding]
            return TORCH[posed.axes](x, kernel, padding=padding, groups=posed.groups)
        return convolve(x, kernel, padding=posed.padding, groups=posed.groups, backend=backend)

    return solving(posed, device, solve, backward)


def solving(
    posed: Problem, device: torch.device, solve: Callable[[Tensor, Tensor], Tensor], backward: bool = True
) -> Run:
    """Solve a problem by a function of input and kernel, always on the same numbers."""
    generator = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator).to(device)

    x, kernel = draw(*posed.input_shape).requires_grad_(), draw(*posed.kernel_shape).requires_grad_()
    direction = draw(*posed.output_shape)

    def run() -> Sequence[Tensor]:
        if not backward:
            with torch.no_grad():
                return [solve(x, kernel)]
        y = solve(x, kernel)
        return [y.detach(), *torch.autograd.grad(y, (x, kernel), direction)]

    return run


def against_torch(
    text: str, posed: Problem, device: torch.device, target: float | None, backward: bool = True
) -> Comparison:
    """Auto against torch on one problem."""
    contenders = {
        "torch": contender(posed, device, None, backward),
        "torchdcls": contender(posed, device, "auto", backward),
    }
    return Comparison(text, contenders, targets={} if target is None else {"torchdcls": target})


def network(size: int, device: torch.device, backend: str | None, backward: bool = True) -> Run:
    """The 18 depthwise convolutions of ConvNeXt-T with kernels of a size, one after the other."""
    runs = [(contender(depthwise(c, n, size), device, backend, backward), blocks) for c, n, blocks in STAGES]

    def run() -> Sequence[Tensor]:
        return [tensor for one, blocks in runs for _ in range(blocks) for tensor in one()]

    return run


def without_result(run: Run) -> Run:
    """For a comparison of different functions: nothing to agree on."""

    def silent() -> Sequence[Tensor]:
        run()
        return []

    return silent


@case
def convolution(device: torch.device) -> Iterator[Comparison]:
    for (channels, side, _), target in zip(STAGES, (10, 10, 8, 8), strict=True):
        yield against_torch(
            f"depthwise 23x23 on 8x{channels}x{side}x{side}", depthwise(channels, side, 23), device, target
        )
    yield Comparison(
        "ConvNeXt-T's 18 convolutions: torch 7x7, ours 23x23",
        {
            "torch 7x7": without_result(network(7, device, None)),
            "torchdcls 23x23": without_result(network(23, device, "auto")),
        },
        targets={"torchdcls 23x23": 1.0},
    )
    yield Comparison(
        "depthwise on 8x96x56x56: ours 23x23, ours 51x51",
        {
            "torchdcls 23x23": without_result(contender(depthwise(96, 56, 23), device, "auto")),
            "torchdcls 51x51": without_result(contender(depthwise(96, 56, 51), device, "auto")),
        },
        targets={"torchdcls 51x51": 1 / 2.2},
    )
    yield Comparison(
        "ConvNeXt-T's 18 convolutions, 7x7",
        {"torch": network(7, device, None), "torchdcls": network(7, device, "auto")},
        targets={"torchdcls": 2.5},
    )
    yield Comparison(
        "ConvNeXt-T's 18 convolutions, 23x23, forward only",
        {"torch": network(23, device, None, backward=False), "torchdcls": network(23, device, "auto", backward=False)},
        targets={"torchdcls": 5},
    )
    yield against_torch("1-D, 64x140x124 with 256x140x25", problem(64, (140, 256), 1, (124,), (25,)), device, 0.95)
    yield against_torch(
        "1-D depthwise, 8x64x16000 with 401 taps", problem(8, (64, 64), 64, (16000,), (401,)), device, 5
    )
    yield against_torch(
        "3-D depthwise, 2x32x16x32x32 with 7x11x11",
        problem(2, (32, 32), 32, (16, 32, 32), (7, 11, 11)),
        device,
        5,
    )


def every_backend(posed: Problem, device: torch.device) -> dict[str, Run]:
    """Torch, the choice, and each backend that can."""
    able = [b.NAME for b in BACKENDS if b.why_not(replace(posed, device=device.type)) is None and b.NAME != "torch"]
    return {"torch": contender(posed, device, None)} | {n: contender(posed, device, n) for n in ["auto", *able]}


@case
def convolution_size(device: torch.device) -> Iterator[Comparison]:
    for size in (3, 7, 11, 15, 19, 23, 31, 41, 51):
        posed = depthwise(96, 56, size)
        yield Comparison(f"{size}x{size} on 8x96x56x56", every_backend(posed, device), repeats=3)


def grid() -> Iterator[Problem]:
    """At least 150 problems of one to three dimensions that take torch less than about half a second."""
    for batch, channels, side, size in itertools.product(
        (1, 8, 64), (32, 192), (7, 14, 28, 56, 112, 224), (1, 3, 7, 15, 31, 51)
    ):
        yield depthwise(channels, side, min(size, 2 * side - 1), batch)
    for batch, channels, side, size in itertools.product((1, 8), (16, 64), (14, 28, 56), (1, 3, 7, 11)):
        yield problem(batch, (channels, 2 * channels), 1, (side, side), (size, size))
    for batch, groups, length, size in itertools.product((1, 16), (1, 64), (124, 1000), (1, 9, 25, 51)):
        yield problem(batch, (64, 64), groups, (length,), (size,))
    for batch, groups, side, size in itertools.product((1, 2), (1, 16), (8, 16), (1, 3, 5, 9)):
        yield problem(batch, (16, 16), groups, (side,) * 3, (size,) * 3)


def affordable(posed: Problem) -> bool:
    """Whether torch solves it soon enough, and it is more than the call itself."""
    slow = 1.0 if posed.depthwise else 0.03  # nanoseconds a product, about
    elements = posed.batch * posed.in_channels * torch.Size(posed.spatial).numel()
    return elements < 2**22 and 5e4 < posed.products * slow < 3e8


@case
def convolution_grid(device: torch.device) -> Iterator[Comparison]:
    for posed in dict.fromkeys(filter(affordable, grid())):
        kind = "depthwise" if posed.depthwise else "dense"
        text = f"{kind} {'x'.join(map(str, posed.size))} on {'x'.join(map(str, posed.input_shape))}"
        yield Comparison(text, every_backend(posed, device), repeats=6, seconds=3, memory=False)

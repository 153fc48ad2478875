"""How far from the machine's limits a convolution is, and another package's convolution by Fourier transforms.

Two limits are measured in the same run: how fast a matrix product computes and how fast memory is copied. A
convolution can't be faster than a copy that reads and writes each of its tensors once; the plain algorithm can't be
faster than a matrix product with as many products. Faster algorithms can, which is why ours may go beyond the second.
"""

import math
from collections.abc import Iterator

import torch
from fft_conv_pytorch import fft_conv
from torch import Tensor

from torchdcls.convolution.problem import Problem

from .convolution import STAGES, contender, depthwise, problem, solving, without_result
from .harness import Comparison, Run, case

SIDE = 2048  # of the matrices
COPIED = 2**26  # elements of a copy

PROBLEMS: dict[str, Problem] = {
    **{f"depthwise 23x23 on 8x{c}x{n}x{n}": depthwise(c, n, 23) for c, n, _ in STAGES},
    "depthwise 51x51 on 8x96x56x56": depthwise(96, 56, 51),
    "depthwise 7x7 on 8x96x56x56": depthwise(96, 56, 7),
    "dense 15x15 on 2x32x28x28": problem(2, (32, 32), 1, (28, 28), (15, 15)),
    "1-D depthwise, 401 taps on 8x64x16000": problem(8, (64, 64), 64, (16000,), (401,)),
    "3-D depthwise 7x11x11 on 2x32x16x32x32": problem(2, (32, 32), 32, (16, 32, 32), (7, 11, 11)),
}


def product(products: float, device: torch.device) -> Run:
    """A matrix product of about so many products."""
    inner = max(1, round(products / SIDE**2))
    a, b = torch.randn(SIDE, inner, device=device), torch.randn(inner, SIDE, device=device)
    return lambda: [a @ b]


def copy(elements: int, device: torch.device) -> Run:
    """A copy that reads and writes so many elements together."""
    source = torch.randn(max(1, elements // 2), device=device)
    target = torch.empty_like(source)
    return lambda: [target.copy_(source)]


@case
def machine(device: torch.device) -> Iterator[Comparison]:
    yield Comparison(
        f"matrix product of {SIDE} x {SIDE} x {SIDE}, float32",
        {"torch": without_result(product(SIDE**3, device))},
        rates={"torch": (2e-9 * SIDE**3, "GFLOP/s")},
    )
    yield Comparison(
        f"copy of {4 * COPIED // 2**20} MiB, read and written",
        {"torch": without_result(copy(2 * COPIED, device))},
        rates={"torch": (2 * 4e-9 * COPIED, "GB/s")},
    )


def touched(posed: Problem) -> int:
    """Elements of all tensors: input, kernel, output; in the backward pass these again, and their gradients."""
    return sum(math.prod(shape) for shape in (posed.input_shape, posed.kernel_shape, posed.output_shape))


@case
def convolution_limit(device: torch.device) -> Iterator[Comparison]:
    for text, posed in PROBLEMS.items():
        for backward in (False, True):
            # Backward: dy, x and k are read, dx and dk written, by two convolutions with as many products.
            again = touched(posed) + math.prod(posed.input_shape) + math.prod(posed.kernel_shape)
            moved = touched(posed) + backward * again
            products = posed.products * (3 if backward else 1)
            yield Comparison(
                f"{text}, {'forward + backward' if backward else 'forward'}",
                {
                    "limit: each tensor read or written once": without_result(copy(moved, device)),
                    "limit: as many products, as matrices": without_result(product(products, device)),
                    "torchdcls": without_result(contender(posed, device, "auto", backward)),
                },
                rates={
                    "limit: each tensor read or written once": (4e-9 * moved, "GB/s"),
                    "limit: as many products, as matrices": (2e-9 * products, "GFLOP/s"),
                    "torchdcls": (2e-9 * products, "GFLOP/s of the plain algorithm"),
                },
                repeats=3,
                memory=False,
            )


def by_package(posed: Problem, device: torch.device) -> Run:
    """Solve a problem by fft-conv-pytorch."""
    padding = [pair[0] for pair in posed.padding]

    def solve(x: Tensor, kernel: Tensor) -> Tensor:
        result: Tensor = fft_conv(x, kernel, padding=padding, groups=posed.groups)
        return result

    return solving(posed, device, solve)


@case
def convolution_package(device: torch.device) -> Iterator[Comparison]:
    for text, posed in PROBLEMS.items():
        yield Comparison(
            f"{text}, forward + backward",
            {"fft-conv-pytorch 1.2.0": by_package(posed, device), "torchdcls": contender(posed, device, "auto")},
        )

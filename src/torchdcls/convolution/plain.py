"""torch's own convolution as it stands: what every other backend must equal, and the best for most problems."""

import math

import torch.nn.functional as F
from torch import Tensor

from .costs import WIDEST_PADDING, estimate
from .problem import Pairs, Problem, flat

NAME = "torch"

_CONVOLUTIONS = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}


def why_not(problem: Problem) -> str | None:
    """The reason why this backend can't: there is none."""
    return None


def cost(problem: Problem) -> float:
    """Nanoseconds, about."""
    passes = ["forward"] + ["input gradient"] * problem.input_gradient + ["kernel gradient"] * problem.kernel_gradient
    elements = math.prod(problem.input_shape) + math.prod(problem.output_shape)
    return sum(estimate(operation_name(problem, each), problem, problem.products, elements) for each in passes)


def kind(problem: Problem) -> str:
    """Which of torch's kernels it takes, in words of the table of costs."""
    if problem.depthwise:
        return "depthwise" if problem.axes < 3 else "depthwise 3-D"
    if problem.groups > 1:
        return "grouped"
    return "dense" if problem.axes == 2 else f"dense {problem.axes}-D"


def operation_name(problem: Problem, operation: str) -> str:
    """Its forward pass, input gradient or kernel gradient in the table of costs."""
    name = f"torch {kind(problem)} {operation}"
    if kind(problem) != "depthwise":
        return name
    if problem.device == "cuda" and problem.channels_last:
        name += ", channels last"
        name += ", half" if problem.dtype.itemsize == 2 else ""
        return name + (", 8 taps at least" if max(problem.size) > 7 else "")
    if operation == "forward" and max(problem.padding[-1]) > WIDEST_PADDING and not problem.channels_last:
        return f"{name}, wide padding"
    if operation == "kernel gradient" and problem.size[-1] <= 3:
        return f"{name}, 3 columns at most"
    return name


def convolve(
    input: Tensor, kernel: Tensor, bias: Tensor | None, stride: tuple[int, ...], padding: Pairs, groups: int
) -> Tensor:
    """The convolution, differentiable in every way that torch knows."""
    amounts = [before for before, _ in padding]
    if any(before != after or before < 0 for before, after in padding):
        input, amounts = F.pad(input, flat(padding)), [0] * len(padding)
    return _CONVOLUTIONS[len(padding)](input, kernel, bias, stride, amounts, 1, groups)

"""torch's own convolution as it stands: what every other backend must equal, and the best for most problems."""

import math

import torch.nn.functional as F
from torch import Tensor

from .costs import WIDEST_DENSE, WIDEST_PADDING, by_axes, estimate
from .problem import Pairs, Problem, flat

NAME = "torch"

_CONVOLUTIONS = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}


def why_not(problem: Problem) -> str | None:
    """The reason why this backend can't: there is none."""
    return None


def cost(problem: Problem) -> float:
    """Nanoseconds, about."""
    passes = ["forward"] + ["input gradient"] * problem.input_gradient + ["kernel gradient"] * problem.kernel_gradient
    return sum(estimate(operation_name(problem, each), problem, *work(problem)) for each in passes)


def work(problem: Problem) -> tuple[float, float]:
    """How many products, and elements moved, each pass takes."""
    if _unfolds(problem):
        return problem.products, problem.products * problem.groups / problem.out_channels
    return problem.products, math.prod(problem.input_shape) + math.prod(problem.output_shape)


def operation_name(problem: Problem, operation: str) -> str:
    """Its forward pass, input gradient or kernel gradient in the table of costs."""
    if problem.depthwise:
        name = f"torch depthwise {operation}"
        name += _depthwise_form(problem, operation) if problem.axes < 3 else ""
    elif _uneven(problem):
        name = f"torch grouped {operation}, uneven"
    elif _unfolds(problem):
        name = f"torch wide {operation}"
    else:
        name = f"torch {'grouped' if problem.groups > 1 else 'dense'} {operation}"
    return by_axes(name, problem)


def _uneven(problem: Problem) -> bool:
    """Whether the channels of each group fill no whole vectors on CPU."""
    channels = (problem.in_channels // problem.groups, problem.out_channels // problem.groups)
    return problem.device == "cpu" and problem.groups > 1 and any(n % 8 for n in channels)


def _unfolds(problem: Problem) -> bool:
    """Whether the kernel is too wide for torch's fast ways on CPU: it unfolds the input and multiplies matrices."""
    return problem.device == "cpu" and not (problem.depthwise or _uneven(problem)) and problem.size[-1] > WIDEST_DENSE


def _depthwise_form(problem: Problem, operation: str) -> str:
    if problem.device == "cuda" and problem.channels_last:
        half = ", half" if problem.dtype.itemsize == 2 else ""
        return f", channels last{half}" + (", 8 taps at least" if max(problem.size) > 7 else "")
    if operation == "forward" and max(problem.padding[-1]) > WIDEST_PADDING and not problem.channels_last:
        return ", wide padding"
    if operation == "kernel gradient" and problem.size[-1] <= 3:
        return ", 3 columns at most"
    return ""


def convolve(
    input: Tensor, kernel: Tensor, bias: Tensor | None, stride: tuple[int, ...], padding: Pairs, groups: int
) -> Tensor:
    """The convolution, differentiable in every way that torch knows."""
    amounts = [before for before, _ in padding]
    if any(before != after or before < 0 for before, after in padding):
        input, amounts = F.pad(input, flat(padding)), [0] * len(padding)
    return _CONVOLUTIONS[len(padding)](input, kernel, bias, stride, amounts, 1, groups)

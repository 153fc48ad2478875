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
    operations = [forward_name(problem)]
    operations += [f"torch {kind(problem)} input gradient"] * problem.input_gradient
    operations += [kernel_gradient_name(problem)] * problem.kernel_gradient
    elements = math.prod(problem.input_shape) + math.prod(problem.output_shape)
    return sum(estimate(operation, problem, problem.products, elements) for operation in operations)


def kind(problem: Problem) -> str:
    """Which of torch's kernels it takes, in words of the table of costs."""
    if problem.depthwise:
        return "depthwise" if problem.axes < 3 else "depthwise 3-D"
    if problem.groups > 1:
        return "grouped"
    return "dense" if problem.axes == 2 else f"dense {problem.axes}-D"


def forward_name(problem: Problem) -> str:
    """The forward pass in the table of costs."""
    wide = max(map(max, problem.padding)) > WIDEST_PADDING and not problem.channels_last
    return f"torch {kind(problem)} forward" + (", wide padding" if wide and kind(problem) == "depthwise" else "")


def kernel_gradient_name(problem: Problem) -> str:
    """The kernel gradient in the table of costs."""
    few = max(problem.size) <= 3 and kind(problem) == "depthwise"
    return f"torch {kind(problem)} kernel gradient" + (", 3 taps at most" if few else "")


def convolve(
    input: Tensor, kernel: Tensor, bias: Tensor | None, stride: tuple[int, ...], padding: Pairs, groups: int
) -> Tensor:
    """The convolution, differentiable in every way that torch knows."""
    amounts = [before for before, _ in padding]
    if any(before != after or before < 0 for before, after in padding):
        input, amounts = F.pad(input, flat(padding)), [0] * len(padding)
    return _CONVOLUTIONS[len(padding)](input, kernel, bias, stride, amounts, 1, groups)

"""The convolution and its input gradient as in `direct`, the kernel gradient as in `spectral`."""

from dataclasses import replace

from torch import Tensor

from . import direct, spectral
from .problem import Problem

NAME = "mixed"


def why_not(problem: Problem) -> str | None:
    """The reason why this backend can't, or None."""
    return direct.why_not(problem) or spectral.why_not(problem)


def cost(problem: Problem) -> float:
    """Nanoseconds, about."""
    total = direct.cost(replace(problem, kernel_gradient=False))
    if problem.kernel_gradient:
        total += spectral.kernel_gradient_cost(problem)
    return total


forward = direct.forward


def backward(
    gradient: Tensor, input: Tensor, kernel: Tensor, kept_input: Tensor, kept_kernel: Tensor, problem: Problem
) -> tuple[Tensor | None, Tensor | None]:
    """The gradients of input and kernel that the problem asks for."""
    only_kernel = replace(problem, input_gradient=False)
    return (
        direct.input_gradient(gradient, kernel, problem) if problem.input_gradient else None,
        spectral.backward(gradient, input, kernel, kept_input, kept_kernel, only_kernel)[1],
    )

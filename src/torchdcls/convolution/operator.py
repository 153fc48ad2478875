"""The backends as an operator of torch's: opaque to compilers, and differentiable any number of times."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from . import direct, mixed, spectral
from .problem import Problem

_ALGORITHMS: dict[str, Any] = {algorithm.NAME: algorithm for algorithm in (direct, spectral, mixed)}


def _problem(input: Tensor, kernel: Tensor, stride: Sequence[int], padding: Sequence[int], groups: int) -> Problem:
    pairs = tuple(zip(padding[::2], padding[1::2], strict=True))
    return Problem.of(input, kernel, tuple(stride), pairs, groups)


@torch.library.custom_op("torchdcls::convolve", mutates_args=())
def convolve(
    input: Tensor,
    kernel: Tensor,
    bias: Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    groups: int,
    backend: str,
    keep: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """The convolution, and two flat tensors for ``convolve_backward``, which are empty unless they are to be kept.

    ``padding`` holds before and after of each axis in turn.
    """
    problem = _problem(input, kernel, stride, padding, groups)
    result: tuple[Tensor, Tensor, Tensor] = _ALGORITHMS[backend].forward(input, kernel, bias, problem, keep)
    return result


@convolve.register_fake
def _fake_convolve(
    input: Tensor,
    kernel: Tensor,
    bias: Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    groups: int,
    backend: str,
    keep: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    problem = _problem(input, kernel, stride, padding, groups)
    output = problem.empty_output(input)
    if not keep:
        return output, input.new_empty(0), input.new_empty(0)
    if all(type(n) is int for n in (*input.shape, *kernel.shape)):
        return output, *spectral.Transforms(problem).buffers(input, keep)
    # How long a transform is depends on the prime factors of sizes, and sizes may be symbols here.
    context, dtype = torch.library.get_ctx(), torch.promote_types(input.dtype, torch.float32).to_complex()
    kept_input = input.new_empty(context.new_dynamic_size(), dtype=dtype)
    return output, kept_input, input.new_empty(context.new_dynamic_size(), dtype=dtype)


@torch.library.custom_op("torchdcls::convolve_backward", mutates_args=())
def convolve_backward(
    gradient: Tensor,
    input: Tensor,
    kernel: Tensor,
    kept_input: Tensor,
    kept_kernel: Tensor,
    stride: Sequence[int],
    padding: Sequence[int],
    groups: int,
    backend: str,
    input_gradient: bool,
    kernel_gradient: bool,
) -> tuple[Tensor, Tensor]:
    """The gradients of input and kernel; the one that is not asked for is empty."""
    problem = _problem(input, kernel, stride, padding, groups)
    problem = replace(problem, input_gradient=input_gradient, kernel_gradient=kernel_gradient)
    dx, dk = _ALGORITHMS[backend].backward(gradient, input, kernel, kept_input, kept_kernel, problem)
    return input.new_empty(0) if dx is None else dx, input.new_empty(0) if dk is None else dk


@convolve_backward.register_fake
def _fake_convolve_backward(
    gradient: Tensor,
    input: Tensor,
    kernel: Tensor,
    kept_input: Tensor,
    kept_kernel: Tensor,
    stride: Sequence[int],
    padding: Sequence[int],
    groups: int,
    backend: str,
    input_gradient: bool,
    kernel_gradient: bool,
) -> tuple[Tensor, Tensor]:
    problem = _problem(input, kernel, stride, padding, groups)
    dx = problem.empty_input(input) if input_gradient else input.new_empty(0)
    return dx, torch.empty_like(kernel) if kernel_gradient else input.new_empty(0)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    input, kernel, _, *ctx.arguments, _ = inputs
    _, kept_input, kept_kernel = output
    ctx.mark_non_differentiable(kept_input, kept_kernel)
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(input, kernel, kept_input, kept_kernel)


def _differentiate(ctx: Any, gradient: Tensor | None, *_: None) -> tuple[Tensor | None, ...]:
    dx = dk = db = None
    needs_input, needs_kernel, needs_bias, *others = ctx.needs_input_grad
    if gradient is not None:
        if needs_input or needs_kernel:
            dx, dk = convolve_backward(gradient, *ctx.saved_tensors, *ctx.arguments, needs_input, needs_kernel)
        if needs_bias:
            db = gradient.sum((0, *range(2, gradient.dim())))
    return (dx if needs_input else None, dk if needs_kernel else None, db, *(None for _ in others))


convolve.register_autograd(_differentiate, setup_context=_keep)


def _keep_twice(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    gradient, input, kernel, _, _, *ctx.arguments, ctx.input_gradient, ctx.kernel_gradient = inputs
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(gradient, input, kernel)


def _differentiate_twice(ctx: Any, ddx: Tensor | None, ddk: Tensor | None) -> tuple[Tensor | None, ...]:
    """A convolution is linear in input and kernel, so its second derivatives are convolutions again.

    Of dx(dy, k) and dk(dy, x) with the gradients ddx and ddk: that of dy is ddx ⋆ k + x ⋆ ddk, that of x
    is dx(dy, ddk), that of k is dk(dy, ddx).
    """
    gradient, input, kernel = ctx.saved_tensors
    needs_gradient, needs_input, needs_kernel, *others = ctx.needs_input_grad
    ddx, ddk = ddx if ctx.input_gradient else None, ddk if ctx.kernel_gradient else None
    nothing = input.new_empty(0)
    of_gradient = of_input = of_kernel = None
    if ddx is not None:
        if needs_gradient:
            of_gradient = convolve(ddx, kernel, None, *ctx.arguments, False)[0]
        if needs_kernel:
            _, of_kernel = convolve_backward(gradient, ddx, kernel, nothing, nothing, *ctx.arguments, False, True)
    if ddk is not None:
        if needs_gradient:
            term = convolve(input, ddk, None, *ctx.arguments, False)[0]
            of_gradient = term if of_gradient is None else of_gradient + term
        if needs_input:
            of_input, _ = convolve_backward(gradient, input, ddk, nothing, nothing, *ctx.arguments, True, False)
    return (of_gradient, of_input, of_kernel, *(None for _ in others))


convolve_backward.register_autograd(_differentiate_twice, setup_context=_keep_twice)

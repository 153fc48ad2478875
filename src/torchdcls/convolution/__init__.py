"""Convolution with kernels of any size: one function, :func:`convolve`, and several backends."""

import warnings
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor
from torch._C._functorch import is_functorch_wrapped_tensor

from ..kernel import autocasting, per_axis, tracing
from . import operator, plain
from .backends import BACKENDS, check_backend, choose
from .problem import (
    Padding,
    PaddingMode,
    Problem,
    check_fit,
    check_groups,
    check_padding_mode,
    check_tensors,
    flat,
    resolve_padding,
)

__all__ = [
    "BACKENDS",
    "Padding",
    "PaddingMode",
    "check_backend",
    "check_groups",
    "check_padding_mode",
    "convolve",
    "resolve_padding",
]


def convolve(
    input: Tensor,
    kernel: Tensor,
    bias: Tensor | None = None,
    stride: int | Sequence[int] = 1,
    padding: Padding = 0,
    groups: int = 1,
    padding_mode: PaddingMode = "zeros",
    backend: str = "auto",
) -> Tensor:
    """Convolve as :func:`torch.nn.functional.conv1d`, ``conv2d`` and ``conv3d`` do, fast for any kernel size.

    Args:
        input: ``(batch, in, *spatial)`` or, unbatched, ``(in, *spatial)``.
        kernel: ``(out, in / groups, *size)``, with one to three axes.
        bias: ``(out,)`` or None.
        stride: an int, or one for each axis.
        padding: an int, ``"valid"``, ``"same"``, or for each axis an int or a pair (before, after).
        groups: into how many groups input and output channels are split.
        padding_mode: ``"zeros"``, ``"reflect"``, ``"replicate"`` or ``"circular"``.
        backend: ``"auto"`` takes the one that should be the fastest, by rules that never change with
            the run; ``"torch"``, ``"direct"``, ``"spectral"`` and ``"mixed"`` take that one or say why it can't.

    Returns:
        ``(batch, out, *spatial)``, or without batch where ``input`` has none, in the memory layout of ``input``.

    >>> convolve(torch.ones(1, 1, 4), torch.ones(1, 1, 3), padding="same")
    tensor([[[2., 3., 3., 2.]]])
    """
    axes = kernel.dim() - 2
    stride = per_axis("stride", stride, axes)
    plainly = _must_be_plain(input, kernel)
    if not tracing():  # sizes are tensors then
        check_tensors(input, kernel, bias, groups)
    check_padding_mode(padding_mode)
    check_backend(backend)
    pairs = resolve_padding(padding, _sizes(kernel), stride)
    padded = input
    if padding_mode != "zeros" or any(amount < 0 for pair in pairs for amount in pair):
        padded = F.pad(input, flat(pairs), mode="constant" if padding_mode == "zeros" else padding_mode)
        pairs = ((0, 0),) * axes
    if plainly:
        return plain.convolve(padded, kernel, bias, stride, pairs, groups)
    check_fit(padded, kernel, pairs)
    if padded.dim() == axes + 1:
        return _dispatch(padded.unsqueeze(0), kernel, bias, stride, pairs, groups, backend).squeeze(0)
    return _dispatch(padded, kernel, bias, stride, pairs, groups, backend)


def _sizes(kernel: Tensor) -> tuple[int, ...]:
    """The kernel's sizes as whole numbers, in torch.jit.trace too, where they are constants in disguise."""
    if not tracing():
        return tuple(kernel.shape[2:])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", torch.jit.TracerWarning)  # type: ignore[attr-defined]
        return tuple(int(n) for n in kernel.shape[2:])


def _must_be_plain(*tensors: Tensor) -> bool:
    """Whether what runs now knows torch's own operations only: exporters, tracing, function transforms."""
    return (
        torch.compiler.is_exporting()
        or tracing()
        or torch.onnx.is_in_onnx_export()
        or (not torch.compiler.is_compiling() and any(map(is_functorch_wrapped_tensor, tensors)))
    )


def _dispatch(
    input: Tensor,
    kernel: Tensor,
    bias: Tensor | None,
    stride: tuple[int, ...],
    padding: tuple[tuple[int, int], ...],
    groups: int,
    backend: str,
) -> Tensor:
    if autocasting(input.device) and torch.float64 not in (input.dtype, kernel.dtype):
        dtype = torch.get_autocast_dtype(input.device.type)
        input, kernel = input.to(dtype), kernel.to(dtype)
        bias = None if bias is None else bias.to(dtype)
    problem = Problem.of(input, kernel, stride, padding, groups, gradients=torch.is_grad_enabled())
    taps = problem.reachable()
    if any(tap.stop - tap.start < k for tap, k in zip(taps, problem.size, strict=True)):
        kernel, problem = kernel[(slice(None), slice(None), *taps)], problem.cut(taps)
    name = choose(problem, backend)
    if name == plain.NAME:
        return plain.convolve(input, kernel, bias, stride, problem.padding, groups)
    amounts = [amount for pair in problem.padding for amount in pair]
    keep = name == "spectral" and (problem.input_gradient or problem.kernel_gradient)
    return operator.convolve(input, kernel, bias, stride, amounts, groups, name, keep)[0]

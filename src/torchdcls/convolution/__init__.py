"""Convolution with kernels of any size: one function, :func:`convolve`, and several backends."""

import warnings
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch._C._functorch import is_functorch_wrapped_tensor

from ..kernel import autocasting, check_tensors, tracing
from . import operator, plain
from .backends import BACKENDS, check_backend
from .planning import Call, Plan, plan
from .problem import (
    Padding,
    PaddingMode,
    check_groups,
    check_padding_mode,
    flat,
    lies_channels_last,
    memory_format,
    padding_for_size,
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
    "padding_for_size",
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
    check_tensors(input=input, kernel=kernel, **({} if bias is None else {"bias": bias}))
    planned = plan(
        Call(
            _sizes(input),
            _sizes(kernel),
            None if bias is None else _sizes(bias),
            input.dtype,
            kernel.dtype,
            None if bias is None else bias.dtype,
            _autocast_dtype(input, kernel),
            input.device.type,
            lies_channels_last(input),
            torch.is_grad_enabled() and input.requires_grad,
            torch.is_grad_enabled() and kernel.requires_grad,
            _frozen(stride),
            _frozen(padding),
            groups,
            padding_mode,
            plain.NAME if _must_be_plain(input, kernel) else backend,
        )
    )
    if planned.fill is not None:
        filled = F.pad(input, flat(planned.fill), mode="constant" if padding_mode == "zeros" else padding_mode)
        input = filled.contiguous(memory_format=memory_format(input))
    if planned.taps is not None:
        kernel = kernel[(slice(None), slice(None), *planned.taps)]
    if planned.backend == plain.NAME:
        return plain.convolve(input, kernel, bias, planned.stride, planned.padding, groups)
    return _by_operator(input, kernel, bias, groups, planned)


def _by_operator(input: Tensor, kernel: Tensor, bias: Tensor | None, groups: int, planned: Plan) -> Tensor:
    if planned.dtype is not None:
        input, kernel = input.to(planned.dtype), kernel.to(planned.dtype)
        bias = None if bias is None else bias.to(planned.dtype)
    amounts = [amount for pair in planned.padding for amount in pair]
    batch = input if planned.batched else input.unsqueeze(0)
    output = operator.convolve(batch, kernel, bias, planned.stride, amounts, groups, planned.backend, planned.keep)[0]
    return output if planned.batched else output.squeeze(0)


def _frozen(value: Any) -> Any:
    """Lists as tuples, so that a call can be looked up."""
    return tuple(map(_frozen, value)) if isinstance(value, list | tuple) else value


def _sizes(tensor: Tensor) -> tuple[int, ...]:
    """The shape as whole numbers; in torch.jit.trace a shape holds tensors, which are constants in disguise."""
    if not tracing():
        return tuple(tensor.shape)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", torch.jit.TracerWarning)  # type: ignore[attr-defined]
        return tuple(int(n) for n in tensor.shape)


def _autocast_dtype(input: Tensor, kernel: Tensor) -> torch.dtype | None:
    """What autocast wants a convolution to be computed in, or None if it leaves it alone."""
    if not autocasting(input.device) or torch.float64 in (input.dtype, kernel.dtype):
        return None
    return torch.get_autocast_dtype(input.device.type)


def _must_be_plain(*tensors: Tensor) -> bool:
    """Whether what runs now knows torch's own operations only: export, ONNX's too, tracing, function transforms."""
    return (
        torch.compiler.is_exporting()
        or tracing()
        or (not torch.compiler.is_compiling() and any(map(is_functorch_wrapped_tensor, tensors)))
    )

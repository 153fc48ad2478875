"""Convolution with kernels of any size: one function, :func:`convolve`."""

from collections.abc import Sequence
from typing import Literal, get_args

import torch.nn.functional as F
from torch import Tensor

from ..kernel import autocasting, per_axis

PaddingMode = Literal["zeros", "reflect", "replicate", "circular"]
Padding = str | int | Sequence[int | tuple[int, int]]

_CONVOLUTIONS = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}


def convolve(
    input: Tensor,
    kernel: Tensor,
    bias: Tensor | None = None,
    stride: int | Sequence[int] = 1,
    padding: Padding = 0,
    groups: int = 1,
    padding_mode: PaddingMode = "zeros",
) -> Tensor:
    """Convolve as :func:`torch.nn.functional.conv1d`, ``conv2d`` and ``conv3d`` do, any dimension in one function.

    Args:
        input: ``(batch, in, *spatial)`` or, unbatched, ``(in, *spatial)``.
        kernel: ``(out, in / groups, *size)``, with one to three axes.
        bias: ``(out,)`` or None.
        stride: an int, or one for each axis.
        padding: an int, ``"valid"``, ``"same"``, or for each axis an int or a pair (before, after).
        groups: into how many groups input and output channels are split.
        padding_mode: ``"zeros"``, ``"reflect"``, ``"replicate"`` or ``"circular"``.

    Returns:
        ``(batch, out, *spatial)``, or without batch where ``input`` has none.

    >>> convolve(torch.ones(1, 1, 4), torch.ones(1, 1, 3), padding="same")
    tensor([[[2., 3., 3., 2.]]])
    """
    axes = kernel.dim() - 2
    check_tensors(input, kernel, bias, groups)
    stride = per_axis("stride", stride, axes)
    pairs = resolve_padding(padding, tuple(kernel.shape[2:]), stride)
    check_padding_mode(padding_mode)
    padded = input
    # torch pads by zeros, alike on both sides, as part of the convolution; anything else comes before.
    if padding_mode != "zeros" or any(before != after or before < 0 for before, after in pairs):
        padded = F.pad(input, _flat(pairs), mode="constant" if padding_mode == "zeros" else padding_mode)
        pairs = ((0, 0),) * axes
    check_fit(padded, kernel, pairs)
    return _CONVOLUTIONS[axes](padded, kernel, bias, stride, [before for before, _ in pairs], 1, groups)


def resolve_padding(padding: Padding, size: tuple[int, ...], stride: tuple[int, ...]) -> tuple[tuple[int, int], ...]:
    """``padding`` as a pair (before, after) for each axis of a kernel of ``size``.

    >>> resolve_padding("same", (3, 4), (1, 1))
    ((1, 1), (1, 2))
    """
    if isinstance(padding, str):
        if padding == "valid":
            return ((0, 0),) * len(size)
        if padding != "same":
            raise ValueError(f"padding must be 'same', 'valid', an int or a tuple, got {padding!r}")
        if any(s != 1 for s in stride):
            raise ValueError(f"padding='same' needs a stride of 1 on every axis, got {stride}")
        return tuple(((s - 1) // 2, s // 2) for s in size)
    values = (padding,) * len(size) if isinstance(padding, int) else tuple(padding)
    if len(values) != len(size):
        raise ValueError(
            f"padding must be an int or a tuple of {len(size)} entries, one for each axis, got {padding!r}"
        )
    return tuple(_pair(value, padding) for value in values)


def _pair(value: int | tuple[int, int], padding: Padding) -> tuple[int, int]:
    pair = tuple(value) if isinstance(value, Sequence) else (value, value)
    if len(pair) != 2 or any(isinstance(v, bool) or not isinstance(v, int) for v in pair):
        raise TypeError(f"padding must have an int or a pair (before, after) for each axis, got {padding!r}")
    return pair


def _flat(pairs: tuple[tuple[int, int], ...]) -> list[int]:
    """Pairs in the order that ``F.pad`` reads, last axis first."""
    return [amount for pair in reversed(pairs) for amount in pair]


def check_padding_mode(padding_mode: str) -> None:
    """Raise if ``padding_mode`` is not one of those in ``PaddingMode``."""
    if padding_mode not in get_args(PaddingMode):
        raise ValueError(f"padding_mode must be one of {', '.join(get_args(PaddingMode))}, got {padding_mode!r}")


def check_groups(in_channels: int, out_channels: int, groups: int) -> None:
    """Raise if ``groups`` does not divide both numbers of channels."""
    for name, value in (("in_channels", in_channels), ("out_channels", out_channels), ("groups", groups)):
        per_axis(name, value, axes=1)
    for name, value in (("in_channels", in_channels), ("out_channels", out_channels)):
        if value % groups:
            raise ValueError(f"{name} must be divisible by groups, got {name}={value} and groups={groups}")


def check_tensors(input: Tensor, kernel: Tensor, bias: Tensor | None, groups: int) -> None:
    """Raise if the tensors of a convolution do not belong together."""
    axes = kernel.dim() - 2
    if axes not in _CONVOLUTIONS:
        raise ValueError(f"kernel must be (out, in / groups, *size) with 1 to 3 axes, got shape {tuple(kernel.shape)}")
    for name, tensor in (("input", input), ("kernel", kernel)):
        if not tensor.dtype.is_floating_point:
            raise TypeError(f"{name} must be a floating point tensor, got {tensor.dtype}")
    if input.dim() not in (axes + 1, axes + 2):
        raise ValueError(
            f"input must be (batch, channels, *spatial) or (channels, *spatial) with {axes} spatial axes, "
            f"got shape {tuple(input.shape)}"
        )
    out_channels, in_channels = kernel.shape[0], kernel.shape[1] * groups
    check_groups(in_channels, out_channels, groups)
    if input.shape[-axes - 1] != in_channels:
        raise ValueError(f"input must have {in_channels} channels, got shape {tuple(input.shape)}")
    if bias is not None and bias.shape != (out_channels,):
        raise ValueError(f"bias must have shape ({out_channels},), got {tuple(bias.shape)}")
    if input.dtype != kernel.dtype and not autocasting(input.device):
        raise TypeError(
            f"input and kernel must have one dtype outside of autocast, got {input.dtype} and {kernel.dtype}"
        )


def check_fit(input: Tensor, kernel: Tensor, pairs: tuple[tuple[int, int], ...]) -> None:
    """Raise if the kernel is larger than the padded input."""
    size = tuple(kernel.shape[2:])
    padded = tuple(n + sum(pair) for n, pair in zip(input.shape[-len(size) :], pairs, strict=True))
    if any(n < s for n, s in zip(padded, size, strict=True)):
        raise ValueError(f"input must be at least as large as the kernel, {size}, after padding, got {padded}")

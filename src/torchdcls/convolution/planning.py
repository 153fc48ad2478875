"""What a call of `convolve` will do: checked and decided from shapes alone, once for each kind of call."""

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from ..kernel import per_axis
from . import plain, spectral
from .backends import check_backend, choose
from .problem import Padding, Pairs, Problem, check_padding_mode, resolve_padding


class Call(NamedTuple):
    """A call, without the values of its tensors."""

    input_shape: tuple[int, ...]
    kernel_shape: tuple[int, ...]
    bias_shape: tuple[int, ...] | None
    input_dtype: torch.dtype
    kernel_dtype: torch.dtype
    bias_dtype: torch.dtype | None
    autocast: torch.dtype | None
    device: str
    channels_last: bool
    input_gradient: bool
    kernel_gradient: bool
    stride: int | Sequence[int]
    padding: Padding
    groups: int
    padding_mode: str
    backend: str


@dataclass(frozen=True)
class Plan:
    """What to do, in this order.

    Attributes:
        fill: (before, after) for each axis to pad by the padding mode beforehand, or None.
        batched: whether the input has a batch.
        dtype: what autocast wants tensors to be cast to, or None.
        taps: the taps of each axis to cut out of the kernel, or None for all.
        stride: for each axis.
        padding: (before, after) for each axis, by zeros, as part of the convolution.
        backend: the one to use.
        keep: whether it is to keep something for the backward pass.
    """

    fill: Pairs | None
    batched: bool
    dtype: torch.dtype | None
    taps: tuple[slice, ...] | None
    stride: tuple[int, ...]
    padding: Pairs
    backend: str
    keep: bool


def plan(call: Call) -> Plan:
    """Check a call and decide."""
    # Compilers look through a cache, with a warning; they plan once a graph anyway.
    return (_plan if torch.compiler.is_compiling() or not _plain(call[-5:]) else _plan_cached)(call)


def _plain(value: Any) -> bool:
    """Whether an argument is of whole numbers and names alone: to a cache 1, 1.0 and True are the same."""
    return type(value) in (int, str) or (isinstance(value, tuple) and all(map(_plain, value)))


def _plan(call: Call) -> Plan:
    axes = len(call.kernel_shape) - 2
    _check_tensors(call, axes)
    check_padding_mode(call.padding_mode)
    check_backend(call.backend)
    stride = per_axis("stride", call.stride, axes)
    padding = resolve_padding(call.padding, call.kernel_shape[2:], stride)
    spatial = call.input_shape[-axes:]
    fill = None
    if call.padding_mode != "zeros" or any(amount < 0 for pair in padding for amount in pair):
        if call.padding_mode != "zeros":
            _check_fill(spatial, padding, call.padding_mode)
        fill, padding = padding, ((0, 0),) * axes
        spatial = tuple(n + sum(pair) for n, pair in zip(spatial, fill, strict=True))
    _check_fit(spatial, call.kernel_shape[2:], padding)
    batched = len(call.input_shape) == axes + 2
    problem = Problem(
        batch=call.input_shape[0] if batched else 1,
        in_channels=call.input_shape[-axes - 1],
        out_channels=call.kernel_shape[0],
        groups=call.groups,
        spatial=spatial,
        size=call.kernel_shape[2:],
        padding=padding,
        stride=stride,
        dtype=call.autocast or call.input_dtype,
        channels_last=call.channels_last,
        device=call.device,
        input_gradient=call.input_gradient,
        kernel_gradient=call.kernel_gradient,
    )
    taps = None
    if call.backend != plain.NAME:
        reachable = problem.reachable()
        if any(tap.stop - tap.start < k for tap, k in zip(reachable, problem.size, strict=True)):
            taps, problem = reachable, problem.cut(reachable)
        problem = problem.without_idle_strides()
    backend = choose(problem, call.backend)
    keep = backend == spectral.NAME and spectral.keeps(problem)
    return Plan(fill, batched, call.autocast, taps, problem.stride, problem.padding, backend, keep)


_plan_cached = functools.lru_cache(maxsize=4096)(_plan)


def _check_tensors(call: Call, axes: int) -> None:
    if not 1 <= axes <= 3:
        raise ValueError(f"kernel must be (out, in / groups, *size) with 1 to 3 axes, got shape {call.kernel_shape}")
    for name, dtype in (("input", call.input_dtype), ("kernel", call.kernel_dtype), ("bias", call.bias_dtype)):
        if dtype is not None and not dtype.is_floating_point:
            raise TypeError(f"{name} must be a floating point tensor, got {dtype}")
    if 0 in call.kernel_shape[1:]:
        raise ValueError(f"kernel must have an input and a tap on every axis at least, got shape {call.kernel_shape}")
    if len(call.input_shape) not in (axes + 1, axes + 2):
        raise ValueError(
            f"input must be (batch, channels, *spatial) or (channels, *spatial) with {axes} spatial axes, "
            f"got shape {call.input_shape}"
        )
    per_axis("groups", call.groups, axes=1)
    out_channels, in_channels = call.kernel_shape[0], call.kernel_shape[1] * call.groups
    if out_channels % call.groups:
        raise ValueError(f"kernel must have outputs divisible by groups, got {out_channels} and groups={call.groups}")
    if call.input_shape[-axes - 1] != in_channels:
        raise ValueError(f"input must have {in_channels} channels, got shape {call.input_shape}")
    if call.bias_shape not in (None, (out_channels,)):
        raise ValueError(f"bias must have shape ({out_channels},), got {call.bias_shape}")
    if call.input_dtype != call.kernel_dtype and call.autocast is None:
        raise TypeError(
            f"input and kernel must have one dtype outside of autocast, got {call.input_dtype} and {call.kernel_dtype}"
        )
    if call.bias_dtype not in (None, call.kernel_dtype) and call.autocast is None:
        raise TypeError(
            f"bias and kernel must have one dtype outside of autocast, got {call.bias_dtype} and {call.kernel_dtype}"
        )


def _check_fill(spatial: tuple[int, ...], padding: Pairs, mode: str) -> None:
    """Raise where a padding mode takes more of the input than there is; torch says so in words of its own."""
    most = {"reflect": -1, "circular": 0, "replicate": math.inf}[mode]
    if any(n == 0 or max(pair) > n + most for n, pair in zip(spatial, padding, strict=True)):
        limit = "smaller than" if mode == "reflect" else "at most"
        raise ValueError(f"padding must be {limit} the input, {spatial}, with padding_mode={mode!r}, got {padding}")


def _check_fit(spatial: tuple[int, ...], size: tuple[int, ...], padding: Pairs) -> None:
    padded = tuple(n + sum(pair) for n, pair in zip(spatial, padding, strict=True))
    if any(n < s for n, s in zip(padded, size, strict=True)):
        raise ValueError(f"input must be at least as large as the kernel, {size}, after padding, got {padded}")

"""What is to be convolved, in numbers: the description that every backend reads."""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from ..kernel import per_axis

PaddingMode = Literal["zeros", "reflect", "replicate", "circular"]
Padding = str | int | Sequence[int | tuple[int, int]]
Pairs = tuple[tuple[int, int], ...]


# On CPU a block stays in the cache, and temporary tensors of its size are used again instead of being fetched
# from the system page by page: up to three times faster than all at once. Elsewhere blocks bound the memory.
_BLOCK_BYTES = {"cpu": 2**21}
_BLOCK_BYTES_ELSEWHERE = 2**28
# So many channels, where they are innermost, fill a cache line and a vector: blocks of other numbers are several times
# slower.
LINE = 16


@dataclass(frozen=True)
class Problem:
    """A convolution with zero padding of ``(batch, in, *spatial)`` by ``(out, in / groups, *size)``.

    Attributes:
        padding: (before, after) for each axis; negative amounts cut.
        channels_last: whether the input lies in memory with its channels innermost.
        device: type of the device, as in ``torch.device.type``.
        input_gradient, kernel_gradient: which gradients will be asked for.
    """

    batch: int
    in_channels: int
    out_channels: int
    groups: int
    spatial: tuple[int, ...]
    size: tuple[int, ...]
    padding: Pairs
    stride: tuple[int, ...]
    dtype: torch.dtype
    channels_last: bool = False
    device: str = "cpu"
    input_gradient: bool = False
    kernel_gradient: bool = False

    @property
    def axes(self) -> int:
        """Number of spatial axes."""
        return len(self.size)

    @property
    def depthwise(self) -> bool:
        """Whether each channel has one kernel of its own."""
        return self.groups == self.in_channels == self.out_channels

    @property
    def output_spatial(self) -> tuple[int, ...]:
        """Spatial shape of the result."""
        sizes = zip(self.spatial, self.padding, self.size, self.stride, strict=True)
        return tuple((n + sum(pair) - k) // s + 1 for n, pair, k, s in sizes)

    @property
    def output_shape(self) -> tuple[int, ...]:
        """Shape of the result."""
        return (self.batch, self.out_channels, *self.output_spatial)

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of the input."""
        return (self.batch, self.in_channels, *self.spatial)

    @property
    def kernel_shape(self) -> tuple[int, ...]:
        """Shape of the kernel."""
        return (self.out_channels, self.in_channels // self.groups, *self.size)

    @property
    def empty(self) -> bool:
        """Whether there is no element in input or result."""
        return 0 in self.input_shape or 0 in self.output_shape

    @property
    def products(self) -> int:
        """About how many multiplications the plain algorithm takes in one pass; it skips those with padding."""
        along = zip(self.output_spatial, self.size, self.stride, self.padding, strict=True)
        touching = [n * k - (p * (p + s) + q * (q + s)) // (2 * s) for n, k, s, (p, q) in along]
        return self.batch * self.out_channels * self.kernel_shape[1] * math.prod(touching)

    @classmethod
    def of(cls, input: Tensor, kernel: Tensor, stride: tuple[int, ...], padding: Pairs, groups: int) -> "Problem":
        """The problem that these tensors pose, the input having a batch."""
        return cls(
            batch=input.shape[0],
            in_channels=input.shape[1],
            out_channels=kernel.shape[0],
            groups=groups,
            spatial=tuple(input.shape[2:]),
            size=tuple(kernel.shape[2:]),
            padding=padding,
            stride=stride,
            dtype=input.dtype,
            channels_last=lies_channels_last(input),
            device=input.device.type,
        )

    def empty_output(self, like: Tensor) -> Tensor:
        """A result to be filled, in the dtype and on the device of ``like`` and in the input's memory layout."""
        return self._empty(self.output_shape, like)

    def empty_input(self, like: Tensor) -> Tensor:
        """An input's gradient to be filled, likewise."""
        return self._empty(self.input_shape, like)

    def _empty(self, shape: tuple[int, ...], like: Tensor) -> Tensor:
        return torch.empty(shape, dtype=like.dtype, device=like.device, memory_format=self.memory_format)

    @property
    def memory_format(self) -> torch.memory_format:
        """How inputs and results lie in memory."""
        return _format(self.channels_last, self.axes)

    def blocks(self, count: int, bytes_each: int, least: int = 1) -> list[slice]:
        """So many groups, or other parts of this size, ``least`` or more in a block of a size good for the device."""
        step = max(least, _BLOCK_BYTES.get(self.device, _BLOCK_BYTES_ELSEWHERE) // max(1, bytes_each))
        if step > LINE // 2:
            step = max(LINE, step - step % LINE)
        return [slice(start, min(start + step, count)) for start in range(0, count, step)]

    def tiles(self, bytes_each: int) -> list[tuple[slice, slice]]:
        """Items of the batch and groups, in blocks of such a size that keep to whole lines of groups."""
        groups = self.blocks(self.groups, self.batch * bytes_each, least=LINE)
        items = self.blocks(self.batch, groups[0].stop * bytes_each)
        return list(itertools.product(items, groups))

    def reachable(self) -> tuple[slice, ...]:
        """The taps of each axis that can touch the input at all, and not only padding; one where none can."""
        result = []
        for n, (before, _), k, s, out in zip(
            self.spatial, self.padding, self.size, self.stride, self.output_spatial, strict=True
        ):
            result.append(slice(min(max(0, before - (out - 1) * s), k - 1), min(k, before + n)))
        return tuple(result)

    def without_idle_strides(self) -> "Problem":
        """The same problem with a stride of 1 on axes with one output, and without the input that it does not read.

        torch 2.14 computes half precision wrongly on some CPUs where the last axis has one output and a stride.
        """
        padding, stride = list(self.padding), list(self.stride)
        for axis, (n, (before, after), k) in enumerate(zip(self.spatial, self.padding, self.size, strict=True)):
            if stride[axis] > 1 and self.output_spatial[axis] == 1:
                padding[axis], stride[axis] = (before, min(after, k - n - before)), 1
        return replace(self, padding=tuple(padding), stride=tuple(stride))

    def cut(self, taps: tuple[slice, ...]) -> "Problem":
        """The same problem with a kernel of which only ``taps`` are left."""
        padding = tuple(
            (before - tap.start, after - (k - tap.stop))
            for (before, after), k, tap in zip(self.padding, self.size, taps, strict=True)
        )
        return replace(self, size=tuple(tap.stop - tap.start for tap in taps), padding=padding)


def lies_channels_last(input: Tensor) -> bool:
    """Whether an input with a batch lies in memory with its channels innermost, and not both ways."""
    if input.dim() < 4 or input.is_contiguous():
        return False
    return input.is_contiguous(memory_format=_format(True, input.dim() - 2))


def memory_format(input: Tensor) -> torch.memory_format:
    """How an input with a batch lies in memory."""
    return _format(lies_channels_last(input), input.dim() - 2)


def _format(channels_last: bool, axes: int) -> torch.memory_format:
    if not channels_last:
        return torch.contiguous_format
    return torch.channels_last if axes == 2 else torch.channels_last_3d


def flat(padding: Pairs) -> list[int]:
    """Pairs in the order in which ``F.pad`` reads them, last axis first."""
    return [amount for pair in reversed(padding) for amount in pair]


def resolve_padding(padding: Padding, size: tuple[int, ...], stride: tuple[int, ...]) -> Pairs:
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
    if isinstance(padding, bool) or not isinstance(padding, int | Sequence):
        raise TypeError(f"padding must be 'same', 'valid', an int or a tuple, got {padding!r}")
    values = (padding,) * len(size) if isinstance(padding, int) else tuple(padding)
    if len(values) != len(size):
        raise ValueError(
            f"padding must be an int or a tuple of {len(size)} entries, one for each axis, got {padding!r}"
        )
    return tuple(_pair(value, padding) for value in values)


def padding_for_size(
    padding: Padding, size: tuple[int, ...], dilation: tuple[int, ...], stride: tuple[int, ...], new: tuple[int, ...]
) -> Padding:
    """The padding with which a kernel of a ``new`` size gives the same output shape, middle on middle.

    >>> padding_for_size(1, (3, 3), (1, 1), (2, 2), (9, 4))
    (4, (2, 1))
    """
    extent = tuple(d * (k - 1) + 1 for d, k in zip(dilation, size, strict=True))
    result: list[int | tuple[int, int]] = []
    for (before, after), old, now in zip(resolve_padding(padding, extent, stride), extent, new, strict=True):
        shift = now // 2 - old // 2
        pair = (before + shift, after + now - old - shift)
        result.append(pair[0] if pair[0] == pair[1] else pair)
    return tuple(result)


def _pair(value: Any, padding: Padding) -> tuple[int, int]:
    pair = tuple(value) if isinstance(value, Sequence) else (value, value)
    if len(pair) != 2 or any(isinstance(v, bool) or not isinstance(v, int) for v in pair):
        raise TypeError(f"padding must have an int or a pair (before, after) for each axis, got {padding!r}")
    return pair


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

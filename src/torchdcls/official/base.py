"""What the official layers have in common: their Parameters and their numbers; our kernel and convolution."""

import math
import warnings
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from ..convolution import check_groups, check_padding_mode, convolve
from .kernels import Placement, whole_numbers

Sizes = int | Sequence[int]


class OfficialLayer(nn.Module):
    """What all official layers have in common; use one of them.

    Attributes:
        weight: ``(out, in / groups, [dense], m)``.
        P: positions, ``(rows, *weight.shape)``, a row for each entry of ``dilated_kernel_size``.
        SIG: widths, shaped as ``P``, or None in the versions v0 and v1.
        bias: ``(out,)`` or None.
        DCK: makes the dense kernel, ``DCK(weight, P, SIG)``; its ``version`` is the one that counts.
    """

    construct: ClassVar[Any] = None
    dense_kernel_size: tuple[int, ...] = ()

    weight: nn.Parameter
    P: nn.Parameter
    SIG: nn.Parameter | None
    bias: nn.Parameter | None

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_count: int,
        stride: Sizes,
        padding: Sizes,
        dense_kernel_size: Sequence[int],
        dilated_kernel_size: Sequence[int],
        transposed: bool,
        output_padding: Sequence[int],
        groups: int,
        bias: bool,
        padding_mode: str,
        version: str,
    ) -> None:
        super().__init__()
        (self.in_channels,) = whole_numbers("in_channels", in_channels, axes=1)
        (self.out_channels,) = whole_numbers("out_channels", out_channels, axes=1)
        (self.groups,) = whole_numbers("groups", groups, axes=1)
        (self.kernel_count,) = whole_numbers("kernel_count", kernel_count, axes=1)
        check_groups(self.in_channels, self.out_channels, self.groups)
        check_padding_mode(padding_mode)
        self.stride = whole_numbers("stride", stride, axes=len(output_padding))
        self.padding = whole_numbers("padding", padding, axes=len(output_padding), minimum=0)
        self.dilated_kernel_size = tuple(dilated_kernel_size)
        self.transposed, self.output_padding = transposed, tuple(output_padding)
        self.padding_mode, self.version = padding_mode, version
        # Subclasses with a `_conv_forward` of their own pad by it.
        self._reversed_padding_repeated_twice = tuple(amount for amount in reversed(self.padding) for _ in range(2))
        if dense_kernel_size:
            self.dense_kernel_size = tuple(dense_kernel_size)
        if self.construct is not None:
            sizes = (self.dense_kernel_size,) * bool(dense_kernel_size) + (self.dilated_kernel_size,)
            channels = self.out_channels, self.in_channels, self.groups
            self.DCK = self.construct(*channels, self.kernel_count, *sizes, version)
            self._warn_of_empty_kernels()

        first, second = (self.in_channels, self.out_channels) if transposed else (self.out_channels, self.in_channels)
        shape = (first, second // self.groups, *self.dense_kernel_size, self.kernel_count)
        per_element = (len(self.dilated_kernel_size), *shape)
        self.weight = nn.Parameter(torch.empty(shape))
        self.P = nn.Parameter(torch.empty(per_element))
        has_width = version in ("gauss", "max")
        self.register_parameter("SIG", nn.Parameter(torch.empty(per_element)) if has_width else None)
        self.register_parameter("bias", nn.Parameter(torch.empty(self.out_channels)) if bias else None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw all parameters anew: the same seed gives the same numbers as in the official package."""
        nn.init.kaiming_uniform_(self.weight, a=math.sqrt(5))
        if self.bias is not None:
            bound = 1 / math.sqrt(self.weight[0].numel())
            nn.init.uniform_(self.bias, -bound, bound)
        with torch.no_grad():
            for row, length in zip(self.P, self.dilated_kernel_size, strict=True):
                self._draw_positions(row, length // 2)
        if self.SIG is not None:
            nn.init.constant_(self.SIG, 0.23 if self.version == "gauss" else 0.0)

    def _draw_positions(self, row: Tensor, limit: int) -> None:
        nn.init.normal_(row, std=0.5).clamp_(-limit, limit)

    @torch.no_grad()
    def clamp_parameters(self) -> None:
        """Move positions that left ``± size // 2`` back to it, in place; with an even size that is a tap too far."""
        for row, length in zip(self.P, self.dilated_kernel_size, strict=True):
            row.clamp_(-(length // 2), length // 2)

    def placement_parameters(self) -> Iterator[nn.Parameter]:
        """Positions and widths, for :func:`torchdcls.parameter_groups`."""
        yield self.P
        if self.SIG is not None:
            yield self.SIG

    def clamp_positions_(self) -> None:
        """``clamp_parameters`` by the name that :func:`torchdcls.clamp_positions_` calls."""
        self.clamp_parameters()

    def _dense_kernel(self, weight: Tensor, P: Tensor, SIG: Tensor | None) -> Tensor:  # noqa: N803
        kernel: Tensor = self.DCK(weight, P, SIG)
        return kernel

    def _conv_forward(
        self,
        input: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        P: Tensor,  # noqa: N803
        SIG: Tensor | None = None,  # noqa: N803
    ) -> Tensor:
        kernel = self._dense_kernel(weight, P, SIG)
        mode: Any = self.padding_mode
        return convolve(input, kernel, bias, self.stride, self.padding, self.groups, mode)

    def forward(self, input: Tensor) -> Tensor:
        """Convolve ``input``, ``(batch, in, *spatial)`` or ``(in, *spatial)``, with the dense kernel."""
        return self._conv_forward(input, self.weight, self.bias, self.P, self.SIG)

    def extra_repr(self) -> str:
        """The arguments that make this layer, without those left at their default."""
        text = f"{self.in_channels}, {self.out_channels}, kernel_count={self.kernel_count}, stride={self.stride}"
        parts = [text, f"version={self.version}", f"dilated_kernel_size={self.dilated_kernel_size}"]
        defaults = {
            "padding": (0,) * len(self.padding),
            "dense_kernel_size": (),
            "groups": 1,
            "padding_mode": "zeros",
        }
        parts += [f"{name}={getattr(self, name)}" for name in defaults if getattr(self, name) != defaults[name]]
        if self.bias is None:
            parts.append("bias=False")
        return ", ".join(parts)

    def _warn_of_empty_kernels(self) -> None:
        """Say so where the official centring starts all elements outside of the window."""
        size = self.dilated_kernel_size
        for shift, length in zip(Placement.of(self.version, size).shifts, size, strict=True):
            middle = length // 2 + shift
            if middle >= length:
                flat = tuple(axis for axis, length in enumerate(size) if length == 1)
                arguments = f"dilated_kernel_size={size}" + f", dense_axes={flat}" * bool(flat)
                warnings.warn(
                    f"dilated_kernel_size {size} puts position 0 at tap {middle} of an axis that has {length}, as the "
                    "official package does: elements start outside of the window, where kernels are zero or crowd at "
                    f"its edge; torchdcls.{type(self).__name__}(..., {arguments}) centres each axis by its own size",
                    stacklevel=5,  # the line that makes the layer
                )
                return


class _DclsNd(OfficialLayer):
    """Base of the layers that learn positions along all axes of ``P``, with the arguments of the official one."""

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_count: int,
        stride: Sizes,
        padding: Sizes,
        dilated_kernel_size: Sequence[int],
        transposed: bool,
        output_padding: Sequence[int],
        groups: int,
        bias: bool,
        padding_mode: str,
        version: str,
    ) -> None:
        elements = (in_channels, out_channels, kernel_count, stride, padding, (), dilated_kernel_size)
        super().__init__(*elements, transposed, output_padding, groups, bias, padding_mode, version)


class _DclsN_Md(OfficialLayer):  # noqa: N801
    """Base of the layers that learn positions along the last axis only, with the arguments of the official one."""

    def _draw_positions(self, row: Tensor, limit: int) -> None:
        nn.init.uniform_(row, -limit, limit)

"""Layers: ``Dcls1d/2d/3d``, whose taps learn their positions, and ``Conv1d/2d/3d``, torch's own made fast."""

import math
from collections.abc import Hashable, Iterator, Sequence
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor, nn

from .convolution import (
    Padding,
    PaddingMode,
    check_backend,
    check_groups,
    check_padding_mode,
    convolve,
    padding_for_size,
    resolve_padding,
)
from .convolution.layers import Conv1d, Conv2d, Conv3d
from .interpolation import Interpolation, find_interpolation
from .kernel import Profiles, combine, dense_kernel, per_axis

# What `torchdcls.shared_profiles` has computed, while it is open: placement of a layer -> profiles.
SHARED: dict[Hashable, Profiles] = {}


def check_model(model: Any) -> None:
    """Raise if ``model`` is no module."""
    if not isinstance(model, nn.Module):
        got = f"the class {model.__name__}" if isinstance(model, type) else type(model).__name__
        raise TypeError(f"model must be a torch.nn.Module, got {got}")


Convolution = nn.Conv1d | nn.Conv2d | nn.Conv3d
Self = TypeVar("Self", bound="DclsNd")


class DclsNd(nn.Module):
    """What ``Dcls1d``, ``Dcls2d`` and ``Dcls3d`` have in common; use one of these."""

    axes: ClassVar[int]
    conv: ClassVar[type[Conv1d] | type[Conv2d] | type[Conv3d]]

    weight: nn.Parameter
    position: nn.Parameter
    sigma: nn.Parameter | None
    bias: nn.Parameter | None

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_count: int,
        dilated_kernel_size: int | Sequence[int],
        stride: int | Sequence[int] = 1,
        padding: Padding = 0,
        groups: int = 1,
        bias: bool = True,
        padding_mode: PaddingMode = "zeros",
        interpolation: str | Interpolation = "gauss",
        dense_axes: Sequence[int] = (),
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        backend: str = "auto",
    ) -> None:
        super().__init__()
        check_groups(in_channels, out_channels, groups)
        check_padding_mode(padding_mode)
        check_backend(backend)
        self.in_channels, self.out_channels, self.groups = in_channels, out_channels, groups
        (self.kernel_count,) = per_axis("kernel_count", kernel_count, axes=1)
        self.dilated_kernel_size = per_axis("dilated_kernel_size", dilated_kernel_size, self.axes)
        self.stride = per_axis("stride", stride, self.axes)
        resolve_padding(padding, self.dilated_kernel_size, self.stride)  # raises now rather than in forward
        self.padding = padding
        self.padding_mode: PaddingMode = padding_mode
        self.backend = backend
        self.interpolation = find_interpolation(interpolation)
        self.dense_axes = self._check_dense_axes(dense_axes)

        if dtype is not None and not (isinstance(dtype, torch.dtype) and dtype.is_floating_point):
            raise TypeError(f"dtype must be a floating point dtype, got {dtype!r}")
        dense_sizes = (self.dilated_kernel_size[axis] for axis in self.dense_axes)
        shape = (out_channels, in_channels // groups, *dense_sizes, self.kernel_count)
        per_element = (len(self.learned_axes), *shape)

        def parameter(*size: int) -> nn.Parameter:
            return nn.Parameter(torch.empty(*size, device=device, dtype=dtype))

        self.weight = parameter(*shape)
        self.position = parameter(*per_element)
        self.register_parameter("sigma", parameter(*per_element) if self.interpolation.has_width else None)
        self.register_parameter("bias", parameter(out_channels) if bias else None)
        self.reset_parameters()

    @property
    def learned_axes(self) -> tuple[int, ...]:
        """The kernel axes along which positions are learned, in kernel order."""
        return tuple(axis for axis in range(self.axes) if axis not in self.dense_axes)

    @property
    def learned_size(self) -> tuple[int, ...]:
        """The size of the window along the learned axes."""
        return tuple(self.dilated_kernel_size[axis] for axis in self.learned_axes)

    def reset_parameters(self) -> None:
        """Draw weights as torch's convolutions do, positions from N(0, 0.5), and set the starting width."""
        nn.init.kaiming_uniform_(self.weight, a=math.sqrt(5))
        nn.init.normal_(self.position, std=0.5)
        self._move_inside()  # in a flat window an element of a compact interpolation would be lost outside
        if self.sigma is not None:
            assert self.interpolation.initial_sigma is not None
            nn.init.constant_(self.sigma, self.interpolation.initial_sigma)
        if self.bias is not None:
            bound = 1 / math.sqrt(self.weight[0].numel())
            nn.init.uniform_(self.bias, -bound, bound)

    @torch.no_grad()
    def clamp_positions_(self) -> None:
        """Move positions that have left the grid back to its edge, in place, where the interpolation needs it.

        The first tap lies at ``-(size // 2)``, the last at ``(size - 1) // 2``.
        """
        if self.interpolation.on_grid:
            self._move_inside()

    @torch.no_grad()
    def _move_inside(self) -> None:
        for position, size in zip(self.position, self.learned_size, strict=True):
            position.clamp_(-(size // 2), (size - 1) // 2)

    def placement_parameters(self) -> Iterator[nn.Parameter]:
        """The parameters that place the elements: positions and, where there are any, widths."""
        for name, parameter in self.named_parameters():
            if {"position", "sigma"} & set(name.split(".")):  # behind a parametrization the name is longer
                yield parameter

    def dense_kernel(self) -> Tensor:
        """The kernel that the layer convolves with, ``(out, in / groups, *dilated_kernel_size)``."""
        shared = SHARED.get(self.placement()) if SHARED and not torch.compiler.is_compiling() else None
        if shared is None:
            kernel = dense_kernel(self.weight, self.position, self.sigma, self.learned_size, self.interpolation)
        else:
            kernel = combine(self.weight, shared)
        if not self.dense_axes:
            return kernel
        stored = (*self.dense_axes, *self.learned_axes)
        return kernel.permute(0, 1, *(2 + stored.index(axis) for axis in range(self.axes)))

    def placement(self) -> Hashable:
        """What the profiles depend on: equal for layers that share it, and another after an edit in place."""
        parameters = [tensor for tensor in (self.position, self.sigma) if tensor is not None]
        values = tuple((id(tensor), None if tensor.is_inference() else tensor._version) for tensor in parameters)
        learned = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in parameters)
        return values, self.learned_size, self.interpolation, learned

    def forward(self, input: Tensor) -> Tensor:
        """Convolve ``input``, ``(batch, in, *spatial)`` or ``(in, *spatial)``, with the dense kernel."""
        kernel = self.dense_kernel()
        return convolve(
            input, kernel, self.bias, self.stride, self.padding, self.groups, self.padding_mode, self.backend
        )

    @torch.no_grad()
    def to_conv(self) -> Conv1d | Conv2d | Conv3d:
        """A convolution that computes the same function with the kernel as it is now."""
        conv = self.conv(
            self.in_channels,
            self.out_channels,
            self.dilated_kernel_size,
            stride=self.stride,
            padding=self.padding,
            groups=self.groups,
            bias=self.bias is not None,
            padding_mode=self.padding_mode,
            device="meta",
            backend=self.backend,
        )
        conv.weight = nn.Parameter(self.dense_kernel().contiguous(), requires_grad=self.weight.requires_grad)
        if self.bias is not None:
            conv.bias = nn.Parameter(self.bias.clone(), requires_grad=self.bias.requires_grad)
        return conv.train(self.training)

    @classmethod
    @torch.no_grad()
    def from_conv(
        cls: type[Self],
        conv: Convolution,
        kernel_count: int,
        dilated_kernel_size: int | Sequence[int],
        interpolation: str | Interpolation = "gauss",
        dense_axes: Sequence[int] = (),
    ) -> Self:
        """A layer in place of ``conv``: same channels, stride and groups, same bias, same output shape.

        Weights, positions and widths are drawn anew. Padding grows with the size, so that the middle
        tap of the new kernel meets the input where the middle tap of the old one did.

        >>> conv = torch.nn.Conv2d(8, 16, kernel_size=3, stride=2, padding=1)
        >>> Dcls2d.from_conv(conv, kernel_count=5, dilated_kernel_size=9)
        Dcls2d(8, 16, kernel_count=5, dilated_kernel_size=(9, 9), stride=(2, 2), padding=(4, 4), interpolation=gauss)
        """
        if not isinstance(conv, Convolution) or len(conv.kernel_size) != cls.axes:
            raise TypeError(f"conv must be a torch.nn.Conv{cls.axes}d, got {type(conv).__name__}")
        torchs = getattr(nn, f"Conv{cls.axes}d")
        known = (torchs._conv_forward, cls.conv._conv_forward)
        if type(conv).forward is not torchs.forward or type(conv)._conv_forward not in known:
            raise TypeError(
                f"conv must compute what torch.nn.Conv{cls.axes}d does, got a {type(conv).__name__} with a forward "
                "of its own; replace it by a plain convolution with the padding that it amounts to first, "
                "or leave it out by where="
            )
        if isinstance(conv.weight, nn.UninitializedParameter):
            raise ValueError("conv must have its shape, got a lazy convolution that has seen no input yet; run it once")
        size = per_axis("dilated_kernel_size", dilated_kernel_size, cls.axes)
        layer = cls(
            conv.in_channels,
            conv.out_channels,
            kernel_count,
            size,
            stride=conv.stride,
            padding=padding_for_size(conv.padding, conv.kernel_size, conv.dilation, conv.stride, size),
            groups=conv.groups,
            bias=conv.bias is not None,
            padding_mode=conv.padding_mode,
            interpolation=interpolation,
            dense_axes=dense_axes,
            device=conv.weight.device,
            dtype=conv.weight.dtype,
            backend=getattr(conv, "backend", "auto"),
        )
        if conv.bias is not None and layer.bias is not None:
            layer.bias.copy_(conv.bias)
            layer.bias.requires_grad_(conv.bias.requires_grad)
        return layer.train(conv.training)

    def extra_repr(self) -> str:
        """The arguments that make this layer, without those left at their default."""
        parts = [
            f"{self.in_channels}, {self.out_channels}, kernel_count={self.kernel_count}, "
            f"dilated_kernel_size={self.dilated_kernel_size}"
        ]
        defaults = {
            "stride": (1,) * self.axes,
            "padding": 0,
            "groups": 1,
            "padding_mode": "zeros",
            "dense_axes": (),
            "backend": "auto",
        }
        parts += [f"{name}={getattr(self, name)}" for name in defaults if getattr(self, name) != defaults[name]]
        if self.bias is None:
            parts.append("bias=False")
        return ", ".join([*parts, f"interpolation={self.interpolation.name}"])

    def _check_dense_axes(self, dense_axes: Sequence[int]) -> tuple[int, ...]:
        if not isinstance(dense_axes, Sequence) or any(type(axis) is not int for axis in dense_axes):
            raise TypeError(f"dense_axes must be a tuple of ints, got {dense_axes!r}")
        axes = tuple(sorted(dense_axes))
        if len(set(axes)) != len(axes) or not set(axes) <= set(range(self.axes)):
            raise ValueError(f"dense_axes must be distinct axes from 0 to {self.axes - 1}, got {dense_axes!r}")
        if len(axes) == self.axes:
            raise ValueError(f"dense_axes must leave at least one axis to learn, got {dense_axes!r}")
        return axes


class Dcls1d(DclsNd):
    """A 1-D convolution whose ``kernel_count`` taps learn where in ``dilated_kernel_size`` they lie.

    Shapes: input ``(batch, in, length)`` or ``(in, length)``; ``weight`` ``(out, in / groups, m)``;
    ``position`` and ``sigma`` ``(1, out, in / groups, m)``.

    >>> layer = Dcls1d(4, 8, kernel_count=3, dilated_kernel_size=25, padding="same")
    >>> layer(torch.randn(2, 4, 100)).shape
    torch.Size([2, 8, 100])
    """

    axes = 1
    conv = Conv1d


class Dcls2d(DclsNd):
    """A 2-D convolution whose ``kernel_count`` taps learn where in ``dilated_kernel_size`` they lie.

    Args:
        in_channels: channels of the input.
        out_channels: channels of the output.
        kernel_count: elements ``m`` of each kernel, wherever they lie.
        dilated_kernel_size: the window in which they move, an int or (height, width).
        stride: as in :class:`torch.nn.Conv2d`.
        padding: ``"same"``, ``"valid"``, an int, or for each axis an int or a pair (before, after).
        groups: as in :class:`torch.nn.Conv2d`.
        bias: as in :class:`torch.nn.Conv2d`.
        padding_mode: ``"zeros"``, ``"reflect"``, ``"replicate"`` or ``"circular"``.
        interpolation: a name from :mod:`torchdcls.interpolation`, or an ``Interpolation``.
        dense_axes: kernel axes along which every tap is there and no position is learned.
        device: where parameters are made.
        dtype: of the parameters.
        backend: how to convolve, as in :func:`convolve`.

    Shapes: input ``(batch, in, height, width)`` or ``(in, height, width)``; ``weight``
    ``(out, in / groups, *sizes of the dense axes, m)``; ``position`` and ``sigma``
    ``(learned axes, *weight.shape)``, in kernel order (height, width), 0 being the middle tap.

    >>> layer = Dcls2d(96, 96, kernel_count=26, dilated_kernel_size=23, padding="same", groups=96)
    >>> layer(torch.randn(1, 96, 28, 28)).shape, layer.dense_kernel().shape
    (torch.Size([1, 96, 28, 28]), torch.Size([96, 1, 23, 23]))
    """

    axes = 2
    conv = Conv2d


class Dcls3d(DclsNd):
    """A 3-D convolution whose ``kernel_count`` taps learn where in ``dilated_kernel_size`` they lie.

    Shapes: input ``(batch, in, depth, height, width)`` or without batch; ``position`` and ``sigma``
    ``(3, out, in / groups, m)`` in kernel order (depth, height, width). With ``dense_axes=(0, 1)``
    only the place along the width is learned, for each of the depth x height taps:

    >>> layer = Dcls3d(2, 2, kernel_count=4, dilated_kernel_size=(3, 3, 15), dense_axes=(0, 1))
    >>> layer.weight.shape, layer.position.shape
    (torch.Size([2, 2, 3, 3, 4]), torch.Size([1, 2, 2, 3, 3, 4]))
    """

    axes = 3
    conv = Conv3d

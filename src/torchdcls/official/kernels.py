"""The official kernel constructors, each written as arguments of our one :func:`~torchdcls.dense_kernel`.

A *version* of theirs is an interpolation and two habits. The rows of ``P`` belong to the axes of the kernel in an
order that depends on the version, and row ``i`` is centred by ``size[i] // 2`` even where it belongs to an axis of
another size. A centre that is off by so many taps is a number of taps added to the position, so nothing more than
that is needed to give the same kernel.
"""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from ..interpolation import Interpolation, bilinear, gauss, triangle
from ..kernel import dense_kernel, per_axis


def _hat(x: Tensor, width: Tensor | None) -> Tensor:
    """``max(0, width - |x|)`` with gradient 0 where it has a kink, as in the official package."""
    return ((1.0 if width is None else width) - x.abs()).relu()


VERSIONS: Mapping[str, Interpolation] = {
    "v0": dataclasses.replace(bilinear, name="v0"),
    "v1": dataclasses.replace(bilinear, name="v1", profile=_hat, normalized=True),
    "max": dataclasses.replace(triangle, name="max", profile=_hat),
    "gauss": gauss,
}
_WITHOUT_V0 = {name: version for name, version in VERSIONS.items() if name != "v0"}
# Dcls2_1d adds 1 to |SIG| where the other layers add 0.27.
_WIDE = _WITHOUT_V0 | {"gauss": dataclasses.replace(gauss, minimum_width=1.0)}

_STRAY = ("IDX", "lim")  # grids that some releases save with the parameters


@dataclasses.dataclass(frozen=True)
class Placement:
    """How rows of ``P`` become positions along kernel axes.

    Attributes:
        rows: for each kernel axis the row of ``P`` and ``SIG`` that belongs to it.
        shifts: for each kernel axis how many taps its centre lies beyond ``size // 2``.
    """

    rows: tuple[int, ...]
    shifts: tuple[int, ...]

    @classmethod
    def of(cls, version: str, size: Sequence[int], v0_width_first: bool = False) -> "Placement":
        """The placement of a version in a window of ``size``.

        Args:
            version: ``"v0"``, ``"v1"``, ``"max"`` or ``"gauss"``.
            size: one length for each row of ``P``.
            v0_width_first: as the 2-D v0 was until late 2023, with row 0 along the width.

        >>> Placement.of("gauss", (9, 5))
        Placement(rows=(1, 0), shifts=(-2, 2))
        """
        rows = tuple(range(len(size)))
        if version != "v0" or (v0_width_first and len(size) == 2):
            rows = rows[::-1]
        elif len(size) == 3:
            rows = (0, 2, 1)
        return cls(rows, tuple(size[row] // 2 - length // 2 for row, length in zip(rows, size, strict=True)))

    def in_kernel_order(self, per_row: Tensor) -> Tensor:
        """``SIG``, or anything else with a row for each axis, sorted as the axes of the kernel are."""
        if self.rows == tuple(range(len(self.rows))):
            return per_row
        return torch.stack([per_row[row] for row in self.rows])

    def position(self, P: Tensor) -> Tensor:  # noqa: N803
        """``P`` as ``position`` of :func:`~torchdcls.dense_kernel`, which centres each axis by its own size."""
        if not any(self.shifts):
            return self.in_kernel_order(P)
        return torch.stack([P[row] + shift for row, shift in zip(self.rows, self.shifts, strict=True)])


def whole_numbers(name: str, value: Any, axes: int, minimum: int = 1) -> tuple[int, ...]:
    """``value`` as one ``int`` for each axis; whatever counts as a whole number will do, NumPy's too."""
    if isinstance(value, Iterable) and not isinstance(value, str):
        value = tuple(v.__index__() if hasattr(v, "__index__") else v for v in value)
    elif hasattr(value, "__index__"):
        value = value.__index__()
    return per_axis(name, value, axes, minimum)


class _ConstructKernel(nn.Module):
    """``DCK(W, P, SIG)``: the dense kernel, by whichever version ``DCK.version`` names at that moment."""

    axes: ClassVar[int]
    versions: ClassVar[Mapping[str, Interpolation]] = VERSIONS

    def __init__(
        self,
        out_channels: int,
        in_channels: int,
        groups: int,
        kernel_count: int,
        dilated_kernel_size: int | Sequence[int],
        version: str,
    ) -> None:
        super().__init__()
        self.out_channels, self.in_channels, self.groups = out_channels, in_channels, groups
        self.kernel_count = kernel_count
        self.dilated_kernel_size = whole_numbers("dilated_kernel_size", dilated_kernel_size, self.axes)
        self.version = version
        self.interpolation()  # raises now rather than in forward

    def interpolation(self) -> Interpolation:
        """What the version of this moment is called here."""
        if self.version not in self.versions:
            raise ValueError(f"version must be one of {', '.join(self.versions)}, got {self.version!r}")
        return self.versions[self.version]

    def forward(self, W: Tensor, P: Tensor, SIG: Tensor | None = None) -> Tensor:  # noqa: N803
        """``W`` ``(out, in / groups, [dense], m)``, ``P`` and ``SIG`` ``(axes, *W.shape)`` -> the dense kernel."""
        interpolation, size = self.interpolation(), self.dilated_kernel_size
        placement = Placement.of(self.version, size)
        position, sigma = placement.position(_fill(P, W)), None
        if SIG is not None and interpolation.has_width:
            sigma = placement.in_kernel_order(_fill(SIG, W).abs())  # their gradient at 0 is that of abs: 0
        return dense_kernel(W, position, sigma, size, interpolation)

    def extra_repr(self) -> str:
        """The arguments that make this constructor."""
        text = f"{self.in_channels}, {self.out_channels}, kernel_count={self.kernel_count}, version={self.version}"
        text += f", dilated_kernel_size={self.dilated_kernel_size}"
        return text if self.groups == 1 else f"{text}, groups={self.groups}"

    def _load_from_state_dict(
        self,
        state_dict: Mapping[str, Any],
        prefix: str,
        local_metadata: Mapping[str, Any],
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        found: list[str] = []
        super()._load_from_state_dict(state_dict, prefix, local_metadata, strict, missing_keys, found, error_msgs)
        unexpected_keys += [key for key in found if key.removeprefix(prefix) not in _STRAY]


def _fill(per_row: Tensor, weight: Tensor) -> Tensor:
    """Positions or widths that channels share by broadcasting, given to each."""
    expected = (per_row.shape[0], *weight.shape)
    return per_row if per_row.shape == expected else per_row.broadcast_to(expected)


class ConstructKernel1d(_ConstructKernel):
    """Kernels ``(out, in / groups, K)``; also those of ``Dcls2dK1d``, before they get their flat axis."""

    axes = 1


class ConstructKernel2d(_ConstructKernel):
    """Kernels ``(out, in / groups, kH, kW)``.

    >>> DCK = ConstructKernel2d(8, 8, 8, 5, (7, 7), "gauss")
    >>> DCK(torch.randn(8, 1, 5), torch.randn(2, 8, 1, 5), torch.rand(2, 8, 1, 5)).shape
    torch.Size([8, 1, 7, 7])
    """

    axes = 2


class ConstructKernel3d(_ConstructKernel):
    """Kernels ``(out, in / groups, kD, kH, kW)``."""

    axes = 3


class _ConstructKernelNMd(_ConstructKernel):
    """Positions along the last axis only, for each tap of the dense axes before it."""

    axes = 1
    versions = _WITHOUT_V0
    dense_axes: ClassVar[int]

    def __init__(
        self,
        out_channels: int,
        in_channels: int,
        groups: int,
        kernel_count: int,
        dense_kernel_size: int | Sequence[int],
        dilated_kernel_size: int | Sequence[int],
        version: str,
    ) -> None:
        super().__init__(out_channels, in_channels, groups, kernel_count, dilated_kernel_size, version)
        self.dense_kernel_size = whole_numbers("dense_kernel_size", dense_kernel_size, self.dense_axes)


class ConstructKernel2_1d(_ConstructKernelNMd):  # noqa: N801
    """Kernels ``(out, in / groups, dense, K)``."""

    dense_axes = 1
    versions = _WIDE


class ConstructKernel3_1d(_ConstructKernelNMd):  # noqa: N801
    """Kernels ``(out, in / groups, dense, dense, K)``."""

    dense_axes = 2

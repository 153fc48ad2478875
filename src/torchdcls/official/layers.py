"""The official layers, with their arguments in their order."""

from torch import Tensor

from .base import Sizes, _DclsN_Md, _DclsNd
from .kernels import (
    ConstructKernel1d,
    ConstructKernel2_1d,
    ConstructKernel2d,
    ConstructKernel3_1d,
    ConstructKernel3d,
    whole_numbers,
)


class Dcls1d(_DclsNd):
    """The official 1-D layer; ``P`` and ``SIG`` are ``(1, out, in / groups, m)``.

    >>> import torch
    >>> layer = Dcls1d(4, 8, kernel_count=1, dilated_kernel_size=25, version="gauss")
    >>> layer(torch.randn(2, 4, 100)).shape
    torch.Size([2, 8, 76])
    """

    construct = ConstructKernel1d

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_count: int,
        stride: Sizes = 1,
        padding: Sizes = 0,
        dilated_kernel_size: Sizes = 1,
        groups: int = 1,
        bias: bool = True,
        padding_mode: str = "zeros",
        version: str = "gauss",
    ) -> None:
        size = whole_numbers("dilated_kernel_size", dilated_kernel_size, axes=1)
        elements = (in_channels, out_channels, kernel_count, stride, padding, size)
        super().__init__(*elements, False, (0,), groups, bias, padding_mode, version)


class Dcls2d(_DclsNd):
    """The official 2-D layer; ``P`` and ``SIG`` are ``(2, out, in / groups, m)``.

    Row 0 of ``P`` belongs to the width, and to the height in version v0. ``use_implicit_gemm`` has no
    effect: the convolution is fast without it, and honours stride and padding mode.

    >>> import torch
    >>> layer = Dcls2d(96, 96, 26, 1, 11, 23, 96)
    >>> layer(torch.randn(1, 96, 28, 28)).shape, layer.P.shape
    (torch.Size([1, 96, 28, 28]), torch.Size([2, 96, 1, 26]))
    """

    construct = ConstructKernel2d

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_count: int,
        stride: Sizes = 1,
        padding: Sizes = 0,
        dilated_kernel_size: Sizes = 1,
        groups: int = 1,
        bias: bool = True,
        padding_mode: str = "zeros",
        version: str = "gauss",
        use_implicit_gemm: bool = True,
    ) -> None:
        size = whole_numbers("dilated_kernel_size", dilated_kernel_size, axes=2)
        elements = (in_channels, out_channels, kernel_count, stride, padding, size)
        super().__init__(*elements, False, (0, 0), groups, bias, padding_mode, version)
        self.use_implicit_gemm = False


class Dcls3d(_DclsNd):
    """The official 3-D layer; ``P`` and ``SIG`` are ``(3, out, in / groups, m)``.

    Rows of ``P`` belong to (width, height, depth), and to (depth, width, height) in version v0.
    """

    construct = ConstructKernel3d

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_count: int,
        stride: Sizes = 1,
        padding: Sizes = 0,
        dilated_kernel_size: Sizes = 1,
        groups: int = 1,
        bias: bool = True,
        padding_mode: str = "zeros",
        version: str = "gauss",
    ) -> None:
        size = whole_numbers("dilated_kernel_size", dilated_kernel_size, axes=3)
        elements = (in_channels, out_channels, kernel_count, stride, padding, size)
        super().__init__(*elements, False, (0, 0, 0), groups, bias, padding_mode, version)


class Dcls2dK1d(_DclsNd):
    """The official layer with flat kernels: ``(K, 1)``, or with ``flat_dim=1`` ``(1, K)``.

    >>> import torch
    >>> Dcls2dK1d(8, 8, 3, padding=(5, 0), dilated_kernel_size=11)(torch.randn(1, 8, 28, 28)).shape
    torch.Size([1, 8, 28, 28])
    """

    construct = ConstructKernel1d

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_count: int,
        stride: Sizes = 1,
        padding: Sizes = 0,
        dilated_kernel_size: Sizes = 1,
        groups: int = 1,
        bias: bool = True,
        padding_mode: str = "zeros",
        version: str = "v1",
        flat_dim: int = 0,
    ) -> None:
        if flat_dim not in (0, 1):
            raise ValueError(f"flat_dim must be 0, for a kernel (K, 1), or 1, for (1, K), got {flat_dim!r}")
        size = whole_numbers("dilated_kernel_size", dilated_kernel_size, axes=1)
        elements = (in_channels, out_channels, kernel_count, stride, padding, size)
        super().__init__(*elements, False, (0, 0), groups, bias, padding_mode, version)
        self.flat_dim = flat_dim

    def _dense_kernel(self, weight: Tensor, P: Tensor, SIG: Tensor | None) -> Tensor:  # noqa: N803
        return super()._dense_kernel(weight, P, SIG).unsqueeze(-1 - self.flat_dim)


class Dcls2_1d(_DclsN_Md):  # noqa: N801
    """The official 2-D layer that learns positions along the width only; ``P`` is ``(1, out, in / groups, dense, m)``.

    >>> import torch
    >>> Dcls2_1d(4, 8, 1, dense_kernel_size=3, dilated_kernel_size=25)(torch.randn(1, 4, 3, 100)).shape
    torch.Size([1, 8, 1, 76])
    """

    construct = ConstructKernel2_1d

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_count: int,
        stride: Sizes = 1,
        padding: Sizes = 0,
        dense_kernel_size: Sizes = 1,
        dilated_kernel_size: Sizes = 1,
        groups: int = 1,
        bias: bool = True,
        padding_mode: str = "zeros",
        version: str = "gauss",
    ) -> None:
        dense = whole_numbers("dense_kernel_size", dense_kernel_size, axes=1)
        size = whole_numbers("dilated_kernel_size", dilated_kernel_size, axes=1)
        elements = (in_channels, out_channels, kernel_count, stride, padding, dense, size)
        super().__init__(*elements, False, (0, 0), groups, bias, padding_mode, version)


class Dcls3_1d(_DclsN_Md):  # noqa: N801
    """The official 3-D layer that learns positions along the width only: ``P`` is ``(1, out, in / groups, D, H, m)``.

    >>> Dcls3_1d(2, 2, 4, dense_kernel_size=(3, 3), dilated_kernel_size=15).P.shape
    torch.Size([1, 2, 2, 3, 3, 4])
    """

    construct = ConstructKernel3_1d

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_count: int,
        stride: Sizes = 1,
        padding: Sizes = 0,
        dense_kernel_size: Sizes = 1,
        dilated_kernel_size: Sizes = 1,
        groups: int = 1,
        bias: bool = True,
        padding_mode: str = "zeros",
        version: str = "gauss",
    ) -> None:
        dense = whole_numbers("dense_kernel_size", dense_kernel_size, axes=2)
        size = whole_numbers("dilated_kernel_size", dilated_kernel_size, axes=1)
        elements = (in_channels, out_channels, kernel_count, stride, padding, dense, size)
        super().__init__(*elements, False, (0, 0, 0), groups, bias, padding_mode, version)

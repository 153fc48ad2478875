"""torch's own layers, ``Conv1d/2d/3d``, made fast: what Dcls layers become to be deployed."""

from typing import Any

from torch import Tensor, nn

from . import convolve
from .backends import check_backend


class _FastConvNd:
    """Puts :func:`convolve` where a torch layer calls its own convolution."""

    stride: Any
    padding: Any
    dilation: Any
    groups: Any
    padding_mode: Any

    def __init__(self, *args: Any, backend: str = "auto", **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        check_backend(backend)
        if any(d != 1 for d in self.dilation) and backend not in ("auto", "torch"):
            raise ValueError(f"backend must be auto or torch for a dilation of {self.dilation}, got {backend!r}")
        self.backend = backend

    def _conv_forward(self, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        if any(d != 1 for d in self.dilation) or weight.is_complex():
            return super()._conv_forward(input, weight, bias)  # type: ignore[misc]
        return convolve(input, weight, bias, self.stride, self.padding, self.groups, self.padding_mode, self.backend)

    def extra_repr(self) -> str:
        """What torch shows, and the backend if it is chosen."""
        shown = super().extra_repr()  # type: ignore[misc]
        return shown if self.backend == "auto" else f"{shown}, backend={self.backend}"


class Conv1d(_FastConvNd, nn.Conv1d):
    """:class:`torch.nn.Conv1d` computed by :func:`convolve`: same arguments, parameters and results."""


class Conv2d(_FastConvNd, nn.Conv2d):
    """:class:`torch.nn.Conv2d` computed by :func:`convolve`: same arguments, parameters and results.

    >>> import torch
    >>> layer = Conv2d(8, 8, kernel_size=23, padding=11, groups=8)
    >>> isinstance(layer, torch.nn.Conv2d), layer(torch.randn(2, 8, 14, 14)).shape
    (True, torch.Size([2, 8, 14, 14]))
    """


class Conv3d(_FastConvNd, nn.Conv3d):
    """:class:`torch.nn.Conv3d` computed by :func:`convolve`: same arguments, parameters and results."""

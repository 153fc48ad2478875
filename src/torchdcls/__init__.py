"""Convolutions with learnable tap positions (DCLS)."""

from ._version import __version__
from .convolution import convolve
from .interpolation import Interpolation
from .kernel import dense_kernel, reference_kernel
from .layers import Conv1d, Conv2d, Conv3d, Dcls1d, Dcls2d, Dcls3d

__all__ = [
    "Conv1d",
    "Conv2d",
    "Conv3d",
    "Dcls1d",
    "Dcls2d",
    "Dcls3d",
    "Interpolation",
    "__version__",
    "convolve",
    "dense_kernel",
    "reference_kernel",
]

"""Convolutions with learnable tap positions (DCLS)."""

from ._version import __version__
from .convolution import convolve
from .convolution.layers import Conv1d, Conv2d, Conv3d
from .interpolation import Interpolation
from .kernel import dense_kernel, reference_kernel
from .layers import Dcls1d, Dcls2d, Dcls3d
from .parameter_groups import clamp_positions_, parameter_groups, register_position_hooks, repulsion_loss
from .sharing import share_positions, shared_profiles
from .surgery import fuse, is_depthwise, matching_kernel_count, replace_convolutions, to_dcls

__all__ = [
    "Conv1d",
    "Conv2d",
    "Conv3d",
    "Dcls1d",
    "Dcls2d",
    "Dcls3d",
    "Interpolation",
    "__version__",
    "clamp_positions_",
    "convolve",
    "dense_kernel",
    "fuse",
    "is_depthwise",
    "matching_kernel_count",
    "parameter_groups",
    "reference_kernel",
    "register_position_hooks",
    "replace_convolutions",
    "repulsion_loss",
    "share_positions",
    "shared_profiles",
    "to_dcls",
]

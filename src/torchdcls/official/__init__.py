"""The authors' ``DCLS.construct.modules``, fast: change one import and keep the rest of the code.

    import torchdcls.official as modules        # was: import DCLS.construct.modules as modules
    from torchdcls.official import Dcls2d       # was: from DCLS.construct.modules import Dcls2d

Names, arguments, parameters, state dicts and numbers are those of the package ``dcls``. For new code the layers
of :mod:`torchdcls` itself are the better choice; :func:`from_official` turns layers, models and checkpoints into
those.
"""

from .base import _DclsN_Md, _DclsNd
from .conversion import from_official, normalized_bilinear
from .files import convert
from .install import install
from .kernels import (
    ConstructKernel1d,
    ConstructKernel2_1d,
    ConstructKernel2d,
    ConstructKernel3_1d,
    ConstructKernel3d,
)
from .layers import Dcls1d, Dcls2_1d, Dcls2d, Dcls2dK1d, Dcls3_1d, Dcls3d

__all__ = [
    "ConstructKernel1d",
    "ConstructKernel2_1d",
    "ConstructKernel2d",
    "ConstructKernel3_1d",
    "ConstructKernel3d",
    "Dcls1d",
    "Dcls2_1d",
    "Dcls2d",
    "Dcls2dK1d",
    "Dcls3_1d",
    "Dcls3d",
    "_DclsN_Md",
    "_DclsNd",
    "convert",
    "from_official",
    "install",
    "normalized_bilinear",
]

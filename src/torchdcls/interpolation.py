"""Interpolations: how an element at a real position spreads over the integer taps of one axis.

An element with position ``p`` on an axis of ``size`` taps lies at distance
``x = p + size // 2 - i`` from tap ``i`` and gives it the share ``I(x)``. Each interpolation is one
small object; to add one, write its profile and pass the object wherever a name is accepted:

    >>> import torch
    >>> def hat(x, width):
    ...     return torch.exp(-x.abs() / width)
    >>> laplace = Interpolation("laplace", hat, minimum_width=0.3, initial_sigma=0.2)
    >>> laplace.width(torch.tensor([0.2, -0.2]))
    tensor([0.5000, 0.5000])
"""

import math
import numbers
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

Profile = Callable[[Tensor, Tensor | None], Tensor]


@dataclass(frozen=True)
class Interpolation:
    """One way to spread an element over the taps of an axis; every axis is treated alike.

    Attributes:
        name: what messages, ``repr`` and saved recipes call it.
        profile: ``profile(x, width) -> I(x)``, elementwise and differentiable. ``x`` is the signed
            distance to a tap, ``width`` broadcasts against it, and is None without a width. A
            function at module level keeps layers that use it picklable.
        minimum_width: σ0 of ``width = σ0 + |sigma|``, or None if there is no width to learn.
        initial_sigma: where ``sigma`` starts, or None if there is no width to learn.
        normalized: divide what an element gives by its sum over the window, so that the element's
            weight is the mass it adds to the kernel wherever it lies.
        on_grid: positions must stay on the taps, because the gradient vanishes outside.
    """

    name: str
    profile: Profile
    minimum_width: float | None = None
    initial_sigma: float | None = None
    normalized: bool = True
    on_grid: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise TypeError(f"name must be a word, got {self.name!r}")
        if not callable(self.profile):
            raise TypeError(f"profile must be a function of (x, width), got {self.profile!r}")
        if (self.minimum_width is None) != (self.initial_sigma is None):
            raise ValueError(
                "minimum_width and initial_sigma must both be numbers, or both None for an interpolation "
                f"without a width, got {self.minimum_width} and {self.initial_sigma}"
            )
        for field in ("minimum_width", "initial_sigma"):
            value: Any = getattr(self, field)
            if value is not None and not isinstance(value, numbers.Real):
                raise TypeError(f"{field} must be a finite number of at least 0, got {value!r}")
            if value is not None and not (0 <= float(value) < math.inf):
                raise ValueError(f"{field} must be a finite number of at least 0, got {value}")

    @property
    def has_width(self) -> bool:
        """Whether elements have a width to learn, that is, whether ``sigma`` is needed."""
        return self.minimum_width is not None

    def width(self, sigma: Tensor) -> Tensor:
        """The width ``σ0 + |sigma|``, shaped as ``sigma``.

        The gradient of ``|sigma|`` at 0 is taken as +1: with the usual 0, a width that starts at 0
        (the triangle's) would never be learned.
        """
        if self.minimum_width is None:
            raise TypeError(f"the {self.name} interpolation has no width")
        return self.minimum_width + _absolute(sigma)


def _absolute(x: Tensor) -> Tensor:
    """``|x|`` with gradient +1 at 0, the derivative to the right."""
    return torch.where(x >= 0, x, -x)


def _tent(x: Tensor, height: Tensor | float) -> Tensor:
    """``max(0, height - |x|)`` with its derivative to the right wherever it has a kink.

    With the symmetric choice, 0, an element that lies exactly on a tap, as one clamped to the border
    does, would receive no gradient and never leave.
    """
    inside = (x >= -height) & (x < height)
    return torch.where(inside, height - _absolute(x), torch.zeros_like(x))


def _bilinear(x: Tensor, width: Tensor | None) -> Tensor:
    return _tent(x, 1.0)


def _triangle(x: Tensor, width: Tensor | None) -> Tensor:
    assert width is not None
    return _tent(x, width)


# exp(-x²/2) = 2 ** -(x · scale)², and likewise for the hyper-Gaussian. On CPU torch.exp is ten times slower than
# torch.exp2 where the result underflows, and most taps of a large window lie that far from an element.
_GAUSS_SCALE = math.sqrt(math.log2(math.e) / 2)
_HYPERGAUSS_SCALE = (math.log2(math.e) / 4) ** 0.25


def _without_tail(value: Tensor) -> Tensor:
    """``value`` with 0 where the product of two such values would be smaller than normal numbers are.

    Some CPUs compute with such numbers 20 times slower, and most of a large window lies that far from an element.
    """
    return functional.hardshrink(value, torch.finfo(value.dtype).tiny ** 0.5)


class _Gauss(torch.autograd.Function):
    """``exp(-x² / (2 width²))`` with its gradients in closed form: half the passes over the taps."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, width: Tensor) -> Tensor:
        return _without_tail(torch.exp2((x * (_GAUSS_SCALE / width)).square().neg_()))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs, output)
        ctx.save_for_forward(*inputs, output)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        x, width, value = ctx.saved_tensors
        slope = (gradient * value).mul_(x)
        return slope * -width.pow(-2), (slope * x).sum_to_size(width.shape) * width.pow(-3)

    @staticmethod
    def jvp(ctx: Any, x_tangent: Tensor, width_tangent: Tensor) -> Tensor:
        x, width, value = ctx.saved_tensors
        return value * x * (x * width_tangent * width.pow(-3) - x_tangent * width.pow(-2))


def _gauss(x: Tensor, width: Tensor | None) -> Tensor:
    assert width is not None
    if torch.compiler.is_compiling():  # a compiler derives and fuses the plain formula better
        return _without_tail(torch.exp2(-(x * (_GAUSS_SCALE / width)).square()))
    return _Gauss.apply(x, width)


def _lorentz(x: Tensor, width: Tensor | None) -> Tensor:
    assert width is not None
    return 1 / (1 + (x / width).square())


def _hypergauss(x: Tensor, width: Tensor | None) -> Tensor:
    assert width is not None
    return _without_tail(torch.exp2(-(x * (_HYPERGAUSS_SCALE / width)).square().square()))


def _sinc(x: Tensor, width: Tensor | None) -> Tensor:
    return torch.sinc(x)


bilinear = Interpolation("bilinear", _bilinear, normalized=False, on_grid=True)
triangle = Interpolation("triangle", _triangle, minimum_width=1.0, initial_sigma=0.0)
gauss = Interpolation("gauss", _gauss, minimum_width=0.27, initial_sigma=0.23)
lorentz = Interpolation("lorentz", _lorentz, minimum_width=0.27, initial_sigma=0.23)
hypergauss = Interpolation("hypergauss", _hypergauss, minimum_width=0.27, initial_sigma=0.23)
# Whittaker-Shannon is interpolation as it stands: its sum over a window changes sign outside of it and
# must not be divided by.
sinc = Interpolation("sinc", _sinc, normalized=False, on_grid=True)

INTERPOLATIONS = (bilinear, triangle, gauss, lorentz, hypergauss, sinc)


def find_interpolation(interpolation: str | Interpolation) -> Interpolation:
    """The interpolation of that name, or the object itself.

    >>> find_interpolation("gauss").minimum_width
    0.27
    """
    if isinstance(interpolation, Interpolation):
        return interpolation
    by_name = {known.name: known for known in INTERPOLATIONS}
    if not isinstance(interpolation, str):
        raise TypeError(
            f"interpolation must be one of {', '.join(by_name)}, or an Interpolation object, "
            f"got {type(interpolation).__name__}"
        )
    if interpolation not in by_name:
        raise ValueError(
            f"interpolation must be one of {', '.join(by_name)}, or an Interpolation object, got {interpolation!r}"
        )
    return by_name[interpolation]

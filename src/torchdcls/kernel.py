"""Dense kernels: weights, positions and widths of a few elements -> a kernel of any dimension.

``dense_kernel`` is the function to use and ``reference_kernel`` its slow, plain twin.
"""

import contextlib
import functools
import itertools
import math
import operator
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch._C._functorch import is_functorch_wrapped_tensor

from .interpolation import Interpolation, find_interpolation

EPSILON = 1e-7  # the paper's ϵ: keeps the normalisation finite when an element is far outside


def dense_kernel(
    weight: Tensor,
    position: Tensor,
    sigma: Tensor | None,
    size: int | Sequence[int],
    interpolation: str | Interpolation = "gauss",
) -> Tensor:
    """The dense kernel that ``m`` elements at real positions make, over any number ``M`` of axes.

        K = Σ_k weight_k · Π_j I(x_jk) / (ϵ + Π_j Σ_i I(x_jk)),    x_jk = position_jk + size_j // 2 - i_j

    without the division where the interpolation is not normalised.

    Args:
        weight: ``(..., m)``.
        position: ``(M, ..., m)``; 0 is the middle tap ``size // 2``, and axis ``j`` belongs to ``size[j]``.
        sigma: ``(M, ..., m)``, or None where the interpolation has no width.
        size: ``(s_1, ..., s_M)``.
        interpolation: a name, or an :class:`~torchdcls.Interpolation`.

    Returns:
        ``(..., s_1, ..., s_M)`` in the dtype of ``weight``, computed in at least float32.

    One element of weight 2, half a tap to the right of the middle:

    >>> weight, position = torch.tensor([2.0]), torch.tensor([[0.0], [0.5]])
    >>> dense_kernel(weight, position, None, size=(3, 5), interpolation="bilinear")
    tensor([[0., 0., 0., 0., 0.],
            [0., 0., 1., 1., 0.],
            [0., 0., 0., 0., 0.]])
    """
    interpolation = find_interpolation(interpolation)
    check_tensors(weight=weight, position=position, **({} if sigma is None else {"sigma": sigma}))
    size = per_axis("size", size, _axes(size, position))
    check_elements(weight, position, sigma, size, interpolation)
    return combine(weight, profiles(position, sigma, size, interpolation))


class Profiles(NamedTuple):
    """What positions and widths alone decide, whatever the weights: layers that share those can share this.

    Attributes:
        factors: what each element gives to each tap, one axis at a time: for axis ``j`` a ``(..., s_j, m)`` tensor.
        mass: ``(..., m)``, what the weights are divided by; None where the interpolation is not normalised.
    """

    factors: tuple[Tensor, ...]
    mass: Tensor | None


def profiles(position: Tensor, sigma: Tensor | None, size: Sequence[int], interpolation: Interpolation) -> Profiles:
    """The profiles of elements along each axis; :func:`combine` adds the weights of one layer."""
    dtype = torch.promote_types(position.dtype, torch.float32)
    positions = position.to(dtype).unsqueeze(-2).unbind()
    if sigma is None:
        widths: Sequence[Tensor | None] = [None] * len(positions)
    else:
        widths = interpolation.width(sigma.to(dtype)).unsqueeze(-2).unbind()
    factors = []
    for axis_position, width, length in zip(positions, widths, size, strict=True):
        tap = torch.arange(-(length // 2), length - length // 2, dtype=dtype, device=position.device)
        # (..., 1, m) - (s, 1): with the elements innermost the products in `combine` need no copies.
        factors.append(interpolation.profile(axis_position - tap.unsqueeze(-1), width))
    if not interpolation.normalized:
        return Profiles(tuple(factors), None)
    return Profiles(tuple(factors), EPSILON + functools.reduce(operator.mul, [factor.sum(-2) for factor in factors]))


def combine(weight: Tensor, given: Profiles) -> Tensor:
    """Sum the elements: ``weight`` ``(..., m)`` and their profiles -> ``(..., s_1, ..., s_M)``.

    The profiles are separable, so two groups of axes are multiplied out on their own and meet in one
    matrix product over the elements; in one and two dimensions no larger tensor than the factors is made.
    """
    dtype, factors = weight.dtype, given.factors
    weight = weight.to(factors[0].dtype)
    if given.mass is not None:
        weight = weight / given.mass
    size = [factor.shape[-2] for factor in factors]
    half = _halfway(size)
    left, right = factors[:half], factors[half:]
    with _without_autocast(weight.device):
        weighted = _outer(left) * weight.unsqueeze(-2) if left else weight.unsqueeze(-2)
        kernel = weighted @ _outer(right).mT
    return kernel.reshape(*weight.shape[:-1], *size).to(dtype)


def reference_kernel(
    weight: Tensor,
    position: Tensor,
    sigma: Tensor | None,
    size: int | Sequence[int],
    interpolation: str | Interpolation = "gauss",
) -> Tensor:
    """:func:`dense_kernel` as the paper's Algorithm 1 writes it: loops over elements and taps.

    Slow and obviously right: the tests compare with it. Same arguments, shapes and result.

    >>> weight, position, sigma = torch.randn(4), torch.randn(2, 4), torch.rand(2, 4)
    >>> fast, slow = (f(weight, position, sigma, (5, 7)) for f in (dense_kernel, reference_kernel))
    >>> torch.allclose(fast, slow, atol=1e-6)
    True
    """
    interpolation = find_interpolation(interpolation)
    size = per_axis("size", size, _axes(size, position))
    kernel = torch.zeros(math.prod(size), dtype=weight.dtype, device=weight.device)
    for k in range(weight.shape[-1]):
        taps = []
        for tap in itertools.product(*map(range, size)):
            share = torch.ones_like(weight[..., k])
            for axis, i in enumerate(tap):
                x = position[axis, ..., k] + size[axis] // 2 - i
                width = None if sigma is None else interpolation.width(sigma[axis, ..., k])
                share = share * interpolation.profile(x, width)
            taps.append(share)
        element = torch.stack(taps, dim=-1)
        if interpolation.normalized:
            element = element / (EPSILON + element.sum(-1, keepdim=True))
        kernel = kernel + weight[..., k, None] * element
    return kernel.reshape(*weight.shape[:-1], *size)


def per_axis(name: str, value: int | Sequence[int], axes: int, minimum: int = 1) -> tuple[int, ...]:
    """``value`` as a tuple of one whole number for each of ``axes`` axes; a single number stands for all.

    >>> per_axis("stride", 2, axes=3)
    (2, 2, 2)
    """
    values = tuple(value) if isinstance(value, Sequence) else (value,) * axes
    if any(isinstance(v, bool) or not isinstance(v, int) for v in values):
        raise TypeError(f"{name} must be an int or a tuple of {axes} ints, got {value!r}")
    if len(values) != axes:
        raise ValueError(f"{name} must be an int or a tuple of {axes} ints, one for each axis, got {value!r}")
    if any(v < minimum for v in values):
        raise ValueError(f"{name} must be at least {minimum} on every axis, got {value!r}")
    return values


def check_tensors(**tensors: Any) -> None:
    """Raise if what is passed by one of these names is no tensor."""
    for name, tensor in tensors.items():
        if not isinstance(tensor, Tensor):
            raise TypeError(f"{name} must be a tensor, got {type(tensor).__name__}")


def check_elements(
    weight: Tensor, position: Tensor, sigma: Tensor | None, size: Sequence[int], interpolation: Interpolation
) -> None:
    """Raise if weight, position and sigma do not belong together."""
    if not weight.dtype.is_floating_point:
        raise TypeError(f"weight must be a floating point tensor, got {weight.dtype}")
    if weight.dim() == 0 or weight.shape[-1] == 0:
        raise ValueError(f"weight must be (..., m) with at least one element m, got shape {tuple(weight.shape)}")
    if sigma is None and interpolation.has_width:
        raise ValueError(f"sigma must be given for the {interpolation.name} interpolation, got None")
    if sigma is not None and not interpolation.has_width:
        raise ValueError(
            f"sigma must be None for the {interpolation.name} interpolation, which has no width, "
            f"got shape {tuple(sigma.shape)}"
        )
    expected = (len(size), *weight.shape)
    for name, value in (("position", position), ("sigma", sigma)):
        if value is None:
            continue
        if value.shape != expected:
            raise ValueError(
                f"{name} must have shape {expected}, an entry for each axis and weight, got {tuple(value.shape)}"
            )
        if value.dtype != weight.dtype:
            raise TypeError(f"{name} must have the dtype of weight, {weight.dtype}, got {value.dtype}")
        # The sum takes one quick pass; where it is not finite it may still have overflowed.
        if _readable(value) and not math.isfinite(value.sum().item()):
            broken = int((~value.isfinite()).sum())
            if broken:
                raise ValueError(f"{name} must be finite, got {broken} values that are not")


def _axes(size: int | Sequence[int], position: Tensor) -> int:
    if isinstance(size, Sequence):
        return len(size)
    return position.shape[0] if position.dim() else 1


def _readable(x: Tensor) -> bool:
    """Whether looking at the values of ``x`` is possible, and cheap: on other devices it would synchronise."""
    return (
        x.device.type == "cpu"
        and not torch.compiler.is_compiling()
        and not tracing()
        and not is_functorch_wrapped_tensor(x)
        and type(x) in (Tensor, torch.nn.Parameter)
    )


def _outer(factors: Sequence[Tensor]) -> Tensor:
    """The product of ``(..., s_j, m)`` factors over their taps, ``(..., Π s_j, m)``."""
    return functools.reduce(lambda a, b: (a.unsqueeze(-2) * b.unsqueeze(-3)).flatten(-3, -2), factors)


def _halfway(size: Sequence[int]) -> int:
    """How many leading axes to group so that the two groups together have the fewest taps."""
    return min(range(len(size)), key=lambda h: (math.prod(size[:h]) if h else 0) + math.prod(size[h:]))


def tracing() -> bool:
    """Whether torch.jit.trace is at work."""
    return torch.jit.is_tracing()  # type: ignore[attr-defined]


def autocasting(device: torch.device) -> bool:
    """Whether autocast is on for ``device``; False where, as on meta, there is none."""
    return device.type != "meta" and torch.is_autocast_enabled(device.type)


def _without_autocast(device: torch.device) -> AbstractContextManager[object]:
    return torch.autocast(device.type, enabled=False) if autocasting(device) else contextlib.nullcontext()

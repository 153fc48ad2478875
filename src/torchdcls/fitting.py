"""Elements fitted to dense kernels, so that a trained network keeps what it knows when it is converted.

Layers that share positions are fitted together: positions and widths are chosen for all of them, the weights
of each by linear least squares. The profiles are separable, and so are the inner products of elements,

    ⟨e_k, e_l⟩ = Π_j Σ_i I(x_ijk) I(x_ijl)

so a fit never makes the dense kernel of an element, however large the window is.
"""

import functools
import math
import operator
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from .interpolation import Interpolation
from .kernel import profiles
from .layers import Convolution, DclsNd

_STEPS, _RATE = 150, 0.1  # of Adam, on positions and widths in taps
# Relative ridges of the least squares. The first is below what float32 rounds off; the second keeps elements that
# overlap from cancelling each other with huge weights, which would be worth a hundredth of the error.
_TINY_RIDGE, _RIDGE = 1e-7, 3e-4
_EXACT = 1e-10  # the share of a kernel's energy that may be left where there is nothing to improve
_AT_ONCE = 2**14  # kernels fitted at a time, which bounds the memory


class Elements(NamedTuple):
    """Elements fitted to some kernels: ``position`` and ``sigma`` (axes, kernels, m), ``weight`` (layers, kernels, m).

    ``left`` is the share of each kernel's energy, summed over the layers, that they miss.
    """

    position: Tensor
    sigma: Tensor | None
    weight: Tensor
    left: Tensor


@torch.no_grad()
def fit_elements_(layers: Sequence[DclsNd], convolutions: Sequence[Convolution]) -> list[float]:
    """Set positions, widths and weights so that each layer's dense kernel is close to that of its convolution.

    Args:
        layers: of one shape; those that share positions belong in one call.
        convolutions: the torch convolution that each layer stands for.

    Returns:
        For each layer the distance of the two kernels as a share of the norm of the convolution's.
    """
    first = layers[0]
    if first.weight.is_meta:
        raise ValueError("start='fit' needs trained kernels to fit, got layers on the meta device")
    if not all(bool(conv.weight.isfinite().all()) for conv in convolutions):
        raise ValueError("start='fit' needs kernels of finite numbers to fit, got some that are not")
    targets = [_in_window(conv, layer) for conv, layer in zip(convolutions, layers, strict=True)]
    axes = (*first.dense_axes, *first.learned_axes)
    stored = torch.stack([target.permute(0, 1, *(2 + axis for axis in axes)) for target in targets]).double()
    kernels = stored.reshape(len(layers), -1, *first.learned_size)
    parts = [fit(part, first.kernel_count, first.interpolation) for part in kernels.split(_AT_ONCE, dim=1)]
    first.position.copy_(torch.cat([part.position for part in parts], dim=1).view_as(first.position))
    if first.sigma is not None:
        first.sigma.copy_(torch.cat([part.sigma for part in parts if part.sigma is not None], 1).view_as(first.sigma))
    for layer, weight in zip(layers, torch.cat([part.weight for part in parts], dim=1), strict=True):
        layer.weight.copy_(weight.view_as(layer.weight))
    return [_error(*each) for each in zip(layers, convolutions, targets, strict=True)]


def _error(layer: DclsNd, conv: Convolution, target: Tensor) -> float:
    """The distance of the kernels, with what of the convolution's lies outside of the window."""
    energy, inside = (kernel.double().square().sum().item() for kernel in (conv.weight, target))
    missed = (layer.dense_kernel().double() - target.double()).square().sum().item() + energy - inside
    return math.sqrt(max(missed, 0.0) / energy) if energy else 0.0


def fit(targets: Tensor, count: int, interpolation: Interpolation) -> Elements:
    """Fit ``count`` elements to each kernel: ``targets`` (layers, kernels, *size), positions common to the layers.

    Elements start on the taps with the most energy. If that, as narrow as the interpolation allows, is not
    exact already, positions and widths follow the gradient of what the best weights leave over; of all
    that was seen, each kernel keeps its best.
    """
    size = targets.shape[2:]
    position = _starting_positions(targets, count)
    sigma = torch.zeros_like(position) if interpolation.has_width else None
    best = _weighted(targets, position, sigma, interpolation, _TINY_RIDGE)
    if best.left.max() <= _EXACT:
        return best
    limits = [(-(length // 2), (length - 1) // 2) for length in size]
    if sigma is not None:
        assert interpolation.initial_sigma is not None
        # Where elements start too narrow to reach a neighbour, their positions would have no slope.
        sigma = sigma + max(interpolation.initial_sigma, 0.1)
    moving = [tensor.clone().requires_grad_() for tensor in (position, sigma) if tensor is not None]
    optimizer = torch.optim.Adam(moving, lr=_RATE)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, _STEPS)
    for _ in range(_STEPS):
        with torch.enable_grad():
            now = _weighted(targets, moving[0], moving[1] if sigma is not None else None, interpolation, _RIDGE)
            optimizer.zero_grad()
            torch.autograd.backward(now.left.sum())
        best = _better(now, best)
        optimizer.step()
        schedule.step()
        for along, (low, high) in zip(moving[0], limits, strict=True):
            along.clamp_(low, high)
    return best


def _starting_positions(targets: Tensor, count: int) -> Tensor:
    """The taps with the most energy, then, if there are more elements, the empty ones next to the middle of them."""
    size = targets.shape[2:]
    taps = torch.stack(
        torch.meshgrid(*(torch.arange(s, device=targets.device) - s // 2 for s in size), indexing="ij")
    ).flatten(1)
    energy = targets.square().sum(0).flatten(1)
    used = energy.sum(0) > 0
    low, high = (
        f(taps[:, used], dim=1, keepdim=True) if used.any() else taps[:, :1] * 0 for f in (torch.amin, torch.amax)
    )
    outside = torch.maximum(low - taps, taps - high).clamp_min(0).amax(0)
    order = energy / energy.amax(1, keepdim=True).clamp_min(1e-300) - outside
    chosen = order.topk(min(count, taps.shape[1])).indices
    # More elements than taps: the rest lies on the taps again, where they share the weight.
    chosen = chosen[:, torch.arange(count, device=targets.device) % chosen.shape[1]]
    return taps.double()[:, chosen]


def _weighted(
    targets: Tensor, position: Tensor, sigma: Tensor | None, interpolation: Interpolation, ridge: float
) -> Elements:
    """The best weights for elements at these positions, and what they leave over."""
    factors, mass = profiles(position, sigma, targets.shape[2:], interpolation)
    gram = functools.reduce(operator.mul, [factor.mT @ factor for factor in factors])
    length = gram.diagonal(dim1=-2, dim2=-1).clamp_min(1e-30).sqrt()
    gram = gram / (length.unsqueeze(-1) * length.unsqueeze(-2))
    axes = "xyz"[: len(factors)]
    terms = ",".join(f"n{axis}k" for axis in axes)
    overlap = torch.einsum(f"ln{axes},{terms}->nkl", targets, *factors) / length.unsqueeze(-1)
    diagonal = ridge * torch.eye(gram.shape[-1], dtype=gram.dtype, device=gram.device)
    solved = torch.cholesky_solve(overlap, torch.linalg.cholesky(gram + diagonal))
    energy = targets.square().sum((0, *range(2, targets.dim())))
    # ‖T - E w‖² for the w of the ridge; exact in w, so that its slope is right without that of w
    left = energy - 2 * (solved * overlap).sum((1, 2)) + (solved * (gram @ solved)).sum((1, 2))
    weight = (solved / length.unsqueeze(-1)).permute(2, 0, 1)
    if mass is not None:
        weight = weight * mass
    return Elements(position, sigma, weight, left / energy.clamp_min(1e-300))


def _better(now: Elements, best: Elements) -> Elements:
    """Of each kernel the elements that leave less over."""
    improved = now.left < best.left

    def pick(a: Tensor, b: Tensor) -> Tensor:
        return torch.where(improved.view(-1, *[1] * (a.dim() - 2)) if a.dim() > 1 else improved, a.detach(), b)

    sigma = None if now.sigma is None or best.sigma is None else pick(now.sigma, best.sigma)
    return Elements(pick(now.position, best.position), sigma, pick(now.weight, best.weight), pick(now.left, best.left))


def _in_window(conv: Convolution, layer: DclsNd) -> Tensor:
    """The kernel of ``conv`` in the window of ``layer``, middle on middle; what sticks out is lost."""
    kernel = conv.weight.detach()
    window = kernel.new_zeros(*kernel.shape[:2], *layer.dilated_kernel_size)
    kept, places = [slice(None)] * 2, [slice(None)] * 2
    for taps, dilation, length in zip(kernel.shape[2:], conv.dilation, layer.dilated_kernel_size, strict=True):
        start = length // 2 - (dilation * (taps - 1) + 1) // 2
        first, end = max(0, -(start // dilation)), min(taps, (length - 1 - start) // dilation + 1)
        kept.append(slice(first, end))
        places.append(slice(start + dilation * first, start + dilation * end, dilation))
    window[tuple(places)] = kernel[tuple(kept)]
    return window

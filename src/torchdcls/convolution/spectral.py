"""Convolution by real Fourier transforms, in any dimension and for any groups.

A correlation over taps is a product over frequencies. With the input placed after its padding,

    y[o]  = Σ_t k[t] x[o + t]        Y  = X conj(K)
    dx[i] = Σ_t k[t] dy[i - t]       dX = dY K
    dk[t] = Σ_o dy[o] x[o + t]       dK = conj(dY) X

so a training step needs four transforms of the input's size: of x and dy, and back to y and dx. Those of
the kernel have no batch; where there is one for each pair of channels, they are made anew in the backward
pass, and so are all where keeping them would take more memory than input and output are worth. Transforms are
circular; at a length of the input and the larger padding, whatever wraps around meets padding only, so the
result is the linear one at the smallest exact size.

Not a number, or infinity, anywhere in a map spreads over all the outputs that the map contributes to,
where the plain convolution keeps it within reach of the kernel.
"""

import functools
import itertools
import math

import torch
from torch import Tensor

from .costs import by_axes, estimate
from .problem import Problem

NAME = "spectral"


def why_not(problem: Problem) -> str | None:
    """The reason why this backend can't, or None."""
    return "there is nothing to transform in an empty input" if problem.empty else None


def cost(problem: Problem) -> float:
    """Nanoseconds, about."""
    total = _transform_cost(problem, problem.in_channels) + _transform_cost(problem, problem.out_channels)
    total += _kernel_transform_cost(problem) + _product_cost(problem)
    if problem.input_gradient or problem.kernel_gradient:
        total += _transform_cost(problem, problem.out_channels)
    kept = keeps(problem)
    if problem.input_gradient:
        total += _transform_cost(problem, problem.in_channels) + _product_cost(problem)
        total += 0 if kept and problem.depthwise else _kernel_transform_cost(problem)
    if problem.kernel_gradient:
        total += _kernel_transform_cost(problem) + _product_cost(problem)
        total += 0 if kept else _transform_cost(problem, problem.in_channels)
    return total


def keeps(problem: Problem) -> bool:
    """Whether the backward pass will find the spectra of the forward pass, or make them anew.

    On small maps, which padding makes several times longer, spectra are too large to be kept: memory stays
    within three times that of input and output.
    """
    if not (problem.input_gradient or problem.kernel_gradient):
        return False
    *others, last = lengths(problem)
    maps = problem.in_channels * (problem.batch + problem.depthwise)
    kept = maps * math.prod(others) * (last // 2 + 1)  # complex numbers
    return kept <= 0.75 * (math.prod(problem.input_shape) + math.prod(problem.output_shape))


def kernel_gradient_cost(problem: Problem) -> float:
    """Nanoseconds for the gradient of the kernel alone, with nothing kept from the forward pass."""
    total = _transform_cost(problem, problem.in_channels) + _transform_cost(problem, problem.out_channels)
    return total + _kernel_transform_cost(problem) + _product_cost(problem)


def _transform_cost(problem: Problem, channels: int) -> float:
    """Nanoseconds for a transform of so many channels of the batch."""
    return estimate(transform_name(problem), problem, *transform_work(problem, problem.batch * channels))


def transform_name(problem: Problem) -> str:
    """A transform in the table of costs; dense ones make matrices, others gather maps whose channels are innermost."""
    if not problem.depthwise:
        return by_axes("transform, dense", problem)
    return by_axes("transform, channels last" if problem.channels_last else "transform", problem)


def _kernel_transform_cost(problem: Problem) -> float:
    return estimate(
        kernel_transform_name(problem), problem, *transform_work(problem, math.prod(problem.kernel_shape[:2]))
    )


def kernel_transform_name(problem: Problem) -> str:
    """The transform of a kernel, or back to one, in the table of costs."""
    return by_axes(f"transform kernels{'' if problem.depthwise else ', dense'}", problem)


def transform_work(problem: Problem, maps: int) -> tuple[float, float]:
    """How many products, about, and elements a transform of so many maps or kernels takes."""
    points = math.prod(lengths(problem))
    return maps * points * math.log2(points + 1), maps * points


def _product_cost(problem: Problem) -> float:
    """Nanoseconds for one product over all frequencies."""
    return estimate("multiply" if problem.depthwise else "multiply matrices", problem, *product_work(problem))


def product_work(problem: Problem) -> tuple[float, float]:
    """How many products, and elements moved, one product over all frequencies takes."""
    frequencies = math.prod(lengths(problem)) / 2
    kernels = problem.out_channels * problem.kernel_shape[1]
    moved = problem.batch * (problem.in_channels + problem.out_channels) + kernels
    return frequencies * problem.batch * kernels, frequencies * moved


def fast_length(minimum: int) -> int:
    """The smallest even length of at least ``minimum`` without a prime factor above 7: these transform fast.

    >>> [fast_length(n) for n in (1, 13, 67, 78)]
    [1, 14, 70, 80]
    """
    if minimum <= 1:
        return 1
    return next(n for n in itertools.count(minimum + minimum % 2, 2) if _is_smooth(n))


def _is_smooth(n: int) -> bool:
    for factor in (2, 3, 5, 7):
        while n % factor == 0:
            n //= factor
    return n == 1


def lengths(problem: Problem) -> tuple[int, ...]:
    """How long the transform along each axis is."""
    axes = zip(problem.spatial, problem.padding, problem.size, strict=True)
    return tuple(fast_length(max(n + max(pair), k, n + sum(pair) - k + 1)) for n, pair, k in axes)


class Transforms:
    """The transforms of one problem, a block at a time: some groups, or some outputs of a group too large for that.

    In a block, spectra have the groups as an axis of their own: those of inputs and outputs are (batch,
    groups, channels of a group, *frequencies), those of kernels (groups, outputs, channels, *frequencies).
    """

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.lengths = lengths(problem)
        self.axes = tuple(range(-problem.axes, 0))
        self.dtype = torch.promote_types(problem.dtype, torch.float32)
        self.channels = problem.in_channels // problem.groups
        self.outputs = problem.out_channels // problem.groups
        self.frequencies = (*self.lengths[:-1], self.lengths[-1] // 2 + 1)
        self.input_window = tuple(slice(p, p + n) for n, (p, _) in zip(problem.spatial, problem.padding, strict=True))
        strides = zip(problem.output_spatial, problem.stride, strict=True)
        self.output_window = tuple(slice(0, (n - 1) * s + 1, s) for n, s in strides)
        self.kernel_window = tuple(slice(0, k) for k in problem.size)
        bytes_each = math.prod(self.lengths) * self.dtype.itemsize
        widest = max(problem.batch * max(self.channels, self.outputs), self.channels * self.outputs)
        per_output = max(problem.batch, self.channels) * bytes_each
        # Groups, and for each of these blocks the blocks of its outputs.
        self.blocks = [
            (groups, [self._outputs_of(groups, part) for part in self._parts(groups, per_output)])
            for groups in problem.blocks(problem.groups, widest * bytes_each)
        ]

    def _parts(self, groups: slice, per_output: int) -> list[slice]:
        if groups.stop - groups.start > 1:
            return [slice(0, self.outputs)]
        return self.problem.blocks(self.outputs, per_output)

    def _outputs_of(self, groups: slice, part: slice) -> slice:
        return slice(groups.start * self.outputs + part.start, (groups.stop - 1) * self.outputs + part.stop)

    def inputs_of(self, groups: slice) -> slice:
        """The input channels of some groups."""
        return slice(groups.start * self.channels, groups.stop * self.channels)

    def of_input(self, input: Tensor, groups: slice) -> Tensor:
        """The spectrum of the inputs of some groups."""
        return self._forward(input[:, self.inputs_of(groups)], self.input_window).unflatten(1, (-1, self.channels))

    def of_output(self, output: Tensor, groups: slice, outputs: slice) -> Tensor:
        """The spectrum of the outputs of a block, or of their gradients."""
        return self._forward(output[:, outputs], self.output_window).unflatten(1, (groups.stop - groups.start, -1))

    def of_kernel(self, kernel: Tensor, groups: slice, outputs: slice) -> Tensor:
        """The spectrum of the kernels of a block."""
        return self._forward(kernel[outputs], self.kernel_window).unflatten(0, (groups.stop - groups.start, -1))

    def to_input(self, spectrum: Tensor) -> Tensor:
        """Back to the inputs of a block."""
        return self._backward(spectrum, self.input_window).flatten(1, 2)

    def to_output(self, spectrum: Tensor) -> Tensor:
        """Back to the outputs of a block."""
        return self._backward(spectrum, self.output_window).flatten(1, 2)

    def to_kernel(self, spectrum: Tensor) -> Tensor:
        """Back to the kernels of a block."""
        return self._backward(spectrum, self.kernel_window).flatten(0, 1)

    def _forward(self, tensor: Tensor, window: tuple[slice, ...]) -> Tensor:
        padded = tensor.new_zeros(*tensor.shape[: -len(window)], *self.lengths, dtype=self.dtype)
        leading = [slice(None)] * (tensor.dim() - len(window))
        padded[(*leading, *window)] = tensor
        return torch.fft.rfftn(padded, dim=self.axes)

    def _backward(self, spectrum: Tensor, window: tuple[slice, ...]) -> Tensor:
        leading = [slice(None)] * (spectrum.dim() - len(window))
        # What comes from products of matrices has its frequencies outermost, and transforms slowly as it lies.
        return torch.fft.irfftn(spectrum.contiguous(), s=self.lengths, dim=self.axes)[(*leading, *window)]

    def buffers(self, like: Tensor, keep: bool) -> tuple[Tensor, Tensor]:
        """Where the spectra of input and kernel are kept, flat and a block after the other; empty if not kept.

        Those of kernels are kept where there is one for each channel only: otherwise they outweigh the rest.
        """
        per_group = self.channels * math.prod(self.frequencies)
        sizes = (self.problem.batch * self.problem.groups * per_group, self.problem.groups * per_group)
        kept = (keep, keep and self.problem.depthwise)
        a, b = (
            like.new_empty(size, dtype=self.dtype.to_complex()) if wanted else like.new_empty(0)
            for size, wanted in zip(sizes, kept, strict=True)
        )
        return a, b

    def part(self, buffer: Tensor, groups: slice) -> Tensor:
        """What a buffer keeps of some groups."""
        per_group = len(buffer) // self.problem.groups
        return buffer[groups.start * per_group : groups.stop * per_group]


_transforms = functools.lru_cache(maxsize=256)(Transforms)


def forward(
    input: Tensor, kernel: Tensor, bias: Tensor | None, problem: Problem, keep: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """The convolution, and what `backward` can use of the spectra of input and kernel."""
    transforms = _transforms(problem)
    output = problem.empty_output(input)
    kept_input, kept_kernel = transforms.buffers(input, keep)
    for groups, parts in transforms.blocks:
        x = transforms.of_input(input, groups)
        if kept_input.numel():
            transforms.part(kept_input, groups).copy_(x.reshape(-1))
        x = arranged(x, problem)
        for outputs in parts:
            k = transforms.of_kernel(kernel, groups, outputs)
            if kept_kernel.numel():
                transforms.part(kept_kernel, groups).copy_(k.reshape(-1))
            part = transforms.to_output(correlate(x, k, problem))
            output[:, outputs] = part if bias is None else part + bias[outputs].view(-1, *[1] * problem.axes)
    return output, kept_input, kept_kernel


def backward(
    gradient: Tensor, input: Tensor, kernel: Tensor, kept_input: Tensor, kept_kernel: Tensor, problem: Problem
) -> tuple[Tensor | None, Tensor | None]:
    """The gradients of input and kernel that the problem asks for; spectra that were not kept are made again."""
    transforms = _transforms(problem)
    input_gradient = problem.empty_input(input) if problem.input_gradient else None
    kernel_gradient = torch.empty_like(kernel) if problem.kernel_gradient else None
    channels, frequencies = transforms.channels, transforms.frequencies
    for groups, parts in transforms.blocks:
        if kernel_gradient is not None:
            if kept_input.numel():
                x = transforms.part(kept_input, groups).view(problem.batch, -1, channels, *frequencies)
            else:
                x = transforms.of_input(input, groups)
            x = arranged(x, problem)
        dx = None
        for outputs in parts:
            dy = arranged(transforms.of_output(gradient, groups, outputs), problem)
            if input_gradient is not None:
                if kept_kernel.numel():
                    k = transforms.part(kept_kernel, groups).view(-1, 1, channels, *frequencies)
                else:
                    k = transforms.of_kernel(kernel, groups, outputs)
                term = dy * k[:, 0] if problem.depthwise else dy @ matrices(k, 0)
                dx = term if dx is None else dx.add_(term)
            if kernel_gradient is not None:
                dy = torch.conj_physical(dy)
                if problem.depthwise:
                    dk = (dy * x).sum(0).unsqueeze(1)
                else:
                    dk = (dy.mT @ x).movedim(1, -1).unflatten(-1, frequencies)
                kernel_gradient[outputs] = transforms.to_kernel(dk)
        if input_gradient is not None and dx is not None:
            dx = dx if problem.depthwise else maps(dx, frequencies)
            input_gradient[:, transforms.inputs_of(groups)] = transforms.to_input(dx)
    return input_gradient, kernel_gradient


def arranged(spectrum: Tensor, problem: Problem) -> Tensor:
    """The spectrum of inputs or outputs of a block as it is multiplied."""
    return spectrum if problem.depthwise else matrices(spectrum, 1)


def correlate(x: Tensor, k: Tensor, problem: Problem) -> Tensor:
    """The spectrum of the outputs of a block, from that of inputs, arranged, and of kernels."""
    # Lazy conjugation, `k.conj()`, is lost in an operator that runs in a compiled graph (torch 2.14).
    k = torch.conj_physical(k)
    return x * k[:, 0] if problem.depthwise else maps(x @ matrices(k, 0).mT, k.shape[3:])


def matrices(spectrum: Tensor, groups: int) -> Tensor:
    """A spectrum with its groups at axis 0 or 1 as a matrix for each group and frequency, (groups, frequencies, ...).

    Made contiguous, the product of matrices is up to 20 times faster than on strided ones, as in an einsum.
    """
    return spectrum.flatten(3).movedim((groups, -1), (0, 1)).contiguous()


def maps(matrices: Tensor, frequencies: tuple[int, ...]) -> Tensor:
    """Matrices (groups, frequencies, batch, channels) as a spectrum (batch, groups, channels, *frequencies)."""
    return matrices.permute(2, 0, 3, 1).unflatten(-1, frequencies)

"""Depthwise convolution by torch's own operation, in the form and memory layout that is fast on CPU.

torch computes both gradients of a depthwise convolution, and with wide padding the convolution itself,
up to a hundred times slower than it computes others with as many products. Here all three are written
as the kind that is fast:

- the convolution, with channels innermost in memory once the padding is wide;
- the input gradient, as the output gradient convolved with the kernel turned around;
- the kernel gradient, as each map of the input convolved with that of the output gradient: the batch is
  folded into the channels, (1, batch * channels, ...), and summed afterwards.
"""

import math
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from .costs import WIDEST_PADDING, estimate
from .problem import LINE, Pairs, Problem, flat

NAME = "direct"
# torch 2.14 takes up to three times longer for kernels this wide, with channels innermost, than for ones of 14 and 15.
SLOW_WIDTHS = range(10, 14)
FOLDED = ", kernel gradient"  # its kernels are as large as maps: another price in the table of costs


def why_not(problem: Problem) -> str | None:
    """The reason why this backend can't, or None."""
    if problem.device != "cpu":
        return f"torch has no faster form on {problem.device}"
    if not problem.depthwise:
        return "torch has a faster form for depthwise convolutions only"
    if problem.empty:
        return "there is nothing to convolve in an empty input"
    if problem.axes == 3:
        return "torch has no faster form in three dimensions"
    if any(s != 1 for s in problem.stride):
        return f"gradients can be turned into convolutions with a stride of 1 only, got {problem.stride}"
    return None


def cost(problem: Problem) -> float:
    """Nanoseconds, about."""
    total = forward_cost(problem)
    if problem.input_gradient:
        total += forward_cost(_turned(problem))
    if problem.kernel_gradient:
        total += min(layout_costs(folded(problem), FOLDED).values())
    return total


def forward_cost(problem: Problem) -> float:
    """Nanoseconds for the convolution alone."""
    return min(layout_costs(problem).values())


def forward(
    input: Tensor, kernel: Tensor, bias: Tensor | None, problem: Problem, keep: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """The convolution; there is nothing to keep for `backward`."""
    return by_blocks(input, kernel, bias, problem, _layout(problem)), input.new_empty(0), input.new_empty(0)


def backward(
    gradient: Tensor, input: Tensor, kernel: Tensor, kept_input: Tensor, kept_kernel: Tensor, problem: Problem
) -> tuple[Tensor | None, Tensor | None]:
    """The gradients of input and kernel that the problem asks for."""
    return (
        input_gradient(gradient, kernel, problem) if problem.input_gradient else None,
        kernel_gradient(gradient, input, problem) if problem.kernel_gradient else None,
    )


def input_gradient(gradient: Tensor, kernel: Tensor, problem: Problem) -> Tensor:
    """The gradient of the input."""
    turned = _turned(problem)
    return by_blocks(gradient, kernel.flip(tuple(range(-problem.axes, 0))), None, turned, _layout(turned))


def kernel_gradient(gradient: Tensor, input: Tensor, problem: Problem) -> Tensor:
    """The gradient of the kernel."""
    return by_maps(gradient, input, problem, _layout(folded(problem), FOLDED))


def by_maps(gradient: Tensor, input: Tensor, problem: Problem, layout: torch.memory_format) -> Tensor:
    """The gradient of the kernel, a map of each item of the batch at a time, computed in a layout."""
    sizes = folded(problem)
    result = input.new_empty(problem.kernel_shape)
    least = math.ceil(LINE / problem.batch)
    for block in problem.blocks(problem.groups, problem.batch * _bytes_each(problem), least):
        maps = _folded_maps(input[:, block], layout)
        kernels = gradient[:, block].reshape(-1, 1, *problem.output_spatial)
        by_map = correlate(maps, kernels, None, sizes.padding, layout)
        result[block] = _summed(by_map, problem.batch, layout)
    return result


def _folded_maps(input: Tensor, layout: torch.memory_format) -> Tensor:
    """``(batch, channels, *spatial)`` as ``(1, batch * channels, *spatial)`` in a layout, by one copy at most."""
    if layout == torch.contiguous_format:
        return input.reshape(1, -1, *input.shape[2:])
    return input.movedim((0, 1), (-2, -1)).reshape(1, *input.shape[2:], -1).movedim(-1, 1)


def _summed(by_map: Tensor, batch: int, layout: torch.memory_format) -> Tensor:
    """``(1, batch * channels, *size)`` as ``(channels, 1, *size)``, the batch summed in the order of the memory."""
    if layout == torch.contiguous_format:
        return by_map.unflatten(1, (batch, -1)).sum(1).movedim(1, 0)
    return by_map.movedim(1, -1).unflatten(-1, (batch, -1)).sum(-2).movedim(-1, 0)


def _turned(problem: Problem) -> Problem:
    """The problem whose convolution is the input gradient of another."""
    padding = tuple((k - 1 - p, k - 1 - q) for k, (p, q) in zip(problem.size, problem.padding, strict=True))
    return replace(problem, spatial=problem.output_spatial, padding=padding)


def folded(problem: Problem) -> Problem:
    """The problem whose convolution is the kernel gradient of another, map by map."""
    maps, size = problem.batch * problem.in_channels, problem.output_spatial
    return replace(problem, batch=1, in_channels=maps, out_channels=maps, groups=maps, size=size, channels_last=False)


def layout_costs(problem: Problem, form: str = "") -> dict[torch.memory_format, float]:
    """Nanoseconds with channels innermost and, where torch is fast with it, outermost."""
    layouts = [torch.channels_last]
    if max(problem.padding[-1]) <= WIDEST_PADDING:
        layouts.append(torch.contiguous_format)
    elements = math.prod(problem.input_shape) + math.prod(problem.output_shape)
    return {
        layout: estimate(operation_name(problem, layout, form), problem, problem.products, elements)
        for layout in layouts
    }


def operation_name(problem: Problem, layout: torch.memory_format, form: str = "") -> str:
    """A convolution computed in a layout in the table of costs; it may have to change the layout that it finds."""
    name = "channels last" if layout == torch.channels_last else "channels first"
    return name + (form or ("" if layout == problem.memory_format else ", moved"))


def _layout(problem: Problem, form: str = "") -> torch.memory_format:
    costs = layout_costs(problem, form)
    return min(costs, key=costs.__getitem__)


def _bytes_each(problem: Problem) -> int:
    """Of one map of the input and of the output."""
    return (math.prod(problem.spatial) + math.prod(problem.output_spatial)) * problem.dtype.itemsize


def by_blocks(
    input: Tensor, kernel: Tensor, bias: Tensor | None, problem: Problem, layout: torch.memory_format
) -> Tensor:
    """The convolution, computed in a layout; where that has to change, in blocks that fit in the cache."""
    if layout == problem.memory_format:
        return correlate(input, kernel, bias, problem.padding, layout)
    output = problem.empty_output(input)
    for items, block in problem.tiles(_bytes_each(problem)):
        part = None if bias is None else bias[block]
        output[items, block] = correlate(input[items, block], kernel[block], part, problem.padding, layout)
    return output


def correlate(
    input: Tensor, kernel: Tensor, bias: Tensor | None, padding: Pairs, layout: torch.memory_format
) -> Tensor:
    """The depthwise convolution, computed in a layout."""
    amounts = [before for before, _ in padding]
    if any(before != after or before < 0 for before, after in padding):
        input, amounts = F.pad(input, flat(padding)), [0] * len(padding)
    if len(padding) == 1:
        input, kernel, amounts = input.unsqueeze(2), kernel.unsqueeze(2), [0, *amounts]
    if layout == torch.channels_last and kernel.shape[-1] in SLOW_WIDTHS:
        more = (SLOW_WIDTHS.stop + 1 - kernel.shape[-1]) // 2
        kernel, amounts = F.pad(kernel, (more, more)), [*amounts[:-1], amounts[-1] + more]
    input = input.contiguous(memory_format=layout)
    output = F.conv2d(input, kernel, bias, padding=amounts, groups=input.shape[1])
    return output.squeeze(2) if len(padding) == 1 else output

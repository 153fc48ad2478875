"""`python -m benchmarks.fit_costs`: measure the operations of `torchdcls.convolution.costs` and fit its table.

Prints the table of a device to paste, and how far off it is. Takes some minutes; run it on an idle machine.
"""

import argparse
import functools
import itertools
import math
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import torch
from scipy.optimize import least_squares
from torch import Tensor

from torchdcls.convolution import convolve, costs, direct, plain, spectral
from torchdcls.convolution.problem import Problem

Sample = tuple[str, float, float, float]  # operation, products, elements, nanoseconds


def nanoseconds(run: Callable[[], object], device: str, budget: float = 0.25) -> float:
    """The median of several runs."""
    synchronize = torch.cuda.synchronize if device == "cuda" else lambda: None
    run()
    times: list[float] = []
    while len(times) < 3 or (sum(times) < budget and len(times) < 15):
        synchronize()
        begin = time.perf_counter()
        run()
        synchronize()
        times.append(time.perf_counter() - begin)
    return statistics.median(times) * 1e9


def problem_of(batch: int, channels: tuple[int, int], groups: int, spatial: int, size: int, axes: int) -> Problem:
    """A square problem that keeps its size."""
    inputs, outputs = channels
    pair = ((size - 1) // 2, size // 2)
    return Problem(
        batch, inputs, outputs, groups, (spatial,) * axes, (size,) * axes, (pair,) * axes, (1,) * axes, torch.float32
    )


def tensors(problem: Problem, layout: torch.memory_format = torch.contiguous_format) -> tuple[Tensor, Tensor, Tensor]:
    """Input, kernel and output gradient."""
    shapes = (problem.input_shape, problem.kernel_shape, problem.output_shape)
    x, kernel, dy = (torch.randn(shape, device=problem.device, dtype=problem.dtype) for shape in shapes)
    return x.contiguous(memory_format=layout), kernel, dy.contiguous(memory_format=layout)


def depthwise_problems() -> Iterator[Problem]:
    """Depthwise problems with odd sizes, in one and two dimensions."""
    for batch, channels, spatial, size in itertools.product(
        (1, 8, 32), (32, 96, 384), (7, 14, 28, 56), (1, 3, 7, 13, 23, 51)
    ):
        problem = problem_of(batch, (channels, channels), channels, spatial, min(size, 2 * spatial - 1), 2)
        if 1e5 < problem.products < 1.2e9 and math.prod(problem.input_shape) < 1e7:
            yield problem
    for batch, channels, spatial, size in itertools.product((1, 8, 32), (16, 128), (100, 1000, 4000), (3, 25, 101)):
        yield problem_of(batch, (channels, channels), channels, spatial, size, 1)


def other_problems() -> Iterator[Problem]:
    """Grouped and dense problems in one to three dimensions."""
    shapes = itertools.product((1, 8), (16, 64), (1, 4), (1, 3, 7, 13, 25, 51))
    for batch, channels, groups, size in shapes:
        for axes, spatial in ((1, 100), (1, 1000), (2, 14), (2, 28), (3, 8), (3, 16)):
            problem = problem_of(batch, (channels, channels), groups, spatial, size, axes)
            if 1e5 < problem.products < 2e9 and size < 2 * spatial:
                yield problem
    for batch, channels, size in itertools.product((1, 2), (16, 32), (3, 5, 7)):
        yield problem_of(batch, (channels, channels), channels, 16, size, 3)


def torch_forms(problem: Problem) -> Iterator[Problem]:
    """The problem in every layout and precision that torch has operations of their own for."""
    yield problem
    if problem.device == "cuda" and problem.axes == 2 and problem.depthwise:
        for dtype in (torch.float32, torch.bfloat16):
            yield replace(problem, channels_last=True, dtype=dtype)


def torch_samples(problem: Problem) -> Iterator[Sample]:
    """The operations of torch's own convolution."""
    x, kernel, dy = tensors(problem, problem.memory_format)
    padding = [pair[0] for pair in problem.padding]
    ones, zeros = [1] * problem.axes, [0] * problem.axes

    def gradient(*mask: bool) -> object:
        return torch.ops.aten.convolution_backward(
            dy, x, kernel, None, ones, padding, ones, False, zeros, problem.groups, mask
        )

    runs: dict[str, Callable[[], object]] = {
        "forward": lambda: plain.convolve(x, kernel, None, problem.stride, problem.padding, problem.groups),
        "input gradient": lambda: gradient(True, False, False),
        "kernel gradient": lambda: gradient(False, True, False),
    }
    for operation, run in runs.items():
        name = plain.operation_name(problem, operation)
        yield name, *plain.work(problem), nanoseconds(run, problem.device)


def layout_samples(problem: Problem) -> Iterator[Sample]:
    """The fast forms of depthwise convolution, with and without a change of layout."""
    elements = math.prod(problem.input_shape) + math.prod(problem.output_shape)
    for last in (False, True) if problem.axes == 2 else (False,):
        posed = replace(problem, channels_last=last)
        x, kernel, _ = tensors(problem, posed.memory_format)
        for layout in direct.layout_costs(posed):
            run = functools.partial(direct.by_blocks, x, kernel, None, posed, layout)
            name = direct.operation_name(posed, layout)
            yield name, problem.products, elements, nanoseconds(run, problem.device)
    x, _, dy = tensors(problem)
    folded = direct.folded(problem)
    elements = math.prod(folded.input_shape) + math.prod(folded.output_shape)
    for layout in direct.layout_costs(folded, direct.FOLDED):
        run = functools.partial(direct.by_maps, dy, x, problem, layout)
        name = direct.operation_name(folded, layout, direct.FOLDED)
        yield name, problem.products, elements, nanoseconds(run, problem.device)


def spectral_samples(problem: Problem) -> Iterator[Sample]:
    """Transforms and products."""
    x, kernel, _ = tensors(problem)
    transforms = spectral.Transforms(problem)
    blocks = [(groups, outputs) for groups, parts in transforms.blocks for outputs in parts]

    def of_kernel(groups: slice, outputs: slice) -> Tensor:
        spectrum = transforms.of_kernel(kernel, groups, outputs)
        return spectrum if problem.depthwise else spectral.matrices(spectrum, 0)

    def kernels_there_and_back() -> None:
        for groups, outputs in blocks:
            spectrum = of_kernel(groups, outputs)
            if not problem.depthwise:
                spectrum = spectrum.movedim(1, -1).unflatten(-1, transforms.frequencies)
            kernel[outputs] = transforms.to_kernel(spectrum)

    work = spectral.transform_work(problem, math.prod(kernel.shape[:2]))
    of_kernels = nanoseconds(kernels_there_and_back, problem.device) / 2
    yield spectral.kernel_transform_name(problem), *work, of_kernels
    spectra = [
        (spectral.arranged(transforms.of_input(x, groups), problem), of_kernel(groups, outputs))
        for groups, outputs in blocks
    ]

    def multiply() -> None:
        for a, b in spectra:
            b = torch.conj_physical(b)
            _ = a * b[:, 0] if problem.depthwise else a @ b.mT

    product = nanoseconds(multiply, problem.device)
    yield "multiply" if problem.depthwise else "multiply matrices", *spectral.product_work(problem), product
    if not problem.depthwise:
        yield dense_transform_sample(problem)
        return
    for last in (False, True) if problem.axes == 2 else (False,):
        yield from transform_sample(replace(problem, channels_last=last), of_kernels, product)


def transform_sample(problem: Problem, of_kernels: float, product: float) -> Iterator[Sample]:
    """What a transform takes in whole passes, forward and backward, where caches are less warm than on its own."""
    posed = replace(problem, input_gradient=True, kernel_gradient=True)
    x, kernel, dy = tensors(posed, posed.memory_format)
    keep = spectral.keeps(posed)

    def passes() -> None:
        _, kept_input, kept_kernel = spectral.forward(x, kernel, None, posed, keep)
        spectral.backward(dy, x, kernel, kept_input, kept_kernel, posed)

    again = 0 if keep else 1  # of both input and kernel
    left = nanoseconds(passes, posed.device) - (2 + again) * of_kernels - 3 * product
    if left > 0:
        work = spectral.transform_work(posed, math.prod(x.shape[:2]))
        yield spectral.transform_name(posed), *work, left / (4 + again)


def dense_transform_sample(problem: Problem) -> Sample:
    """Transforms of the input there and back, half each."""
    x, _, _ = tensors(problem)
    back = torch.empty_like(x)  # not x itself, which would lie in the cache
    transforms = spectral.Transforms(problem)

    def there_and_back() -> None:
        for groups, _ in transforms.blocks:
            spectrum = spectral.arranged(transforms.of_input(x, groups), problem)
            back[:, transforms.inputs_of(groups)] = transforms.to_input(spectral.maps(spectrum, transforms.frequencies))

    work = spectral.transform_work(problem, math.prod(x.shape[:2]))
    return spectral.transform_name(problem), *work, nanoseconds(there_and_back, problem.device) / 2


def operator_sample(device: str) -> Sample:
    """What calling the operator costs beyond its work: forward and backward of next to nothing, half each."""
    problem = problem_of(1, (16, 16), 16, 7, 3, 2)
    problem = replace(problem, input_gradient=True, kernel_gradient=True, device=device)
    x, kernel, dy = tensors(problem)
    nothing = x.new_empty(0)

    def work() -> None:
        spectral.forward(x, kernel, None, problem, False)
        spectral.backward(dy, x, kernel, nothing, nothing, problem)

    def call() -> None:
        with torch.enable_grad():
            y = convolve(x, kernel, padding=1, groups=16, backend="spectral")
            torch.autograd.grad(y, (x, kernel), dy)

    x.requires_grad_(), kernel.requires_grad_()
    times = [nanoseconds(call, device, 1.0) - nanoseconds(work, device, 1.0) for _ in range(5)]
    return "operator", 0, 0, statistics.median(times) / 2


def fit(samples: list[Sample], device: str) -> None:
    """Fit three positive numbers for each row, by robust least squares of logarithms; print the table."""
    by_operation: dict[str, list[Sample]] = defaultdict(list)
    for sample in samples:
        by_operation[costs.row(sample[0], device)].append(sample)
    for operation, group in by_operation.items():
        matrix = np.array([[1, products, elements] for _, products, elements, _ in group])
        measured = np.array([ns for *_, ns in group])

        def off(logarithms: np.ndarray, matrix: np.ndarray = matrix, measured: np.ndarray = measured) -> np.ndarray:
            return np.asarray(np.log(matrix @ np.exp(logarithms) / measured))

        solution = least_squares(off, np.log([3e4, 0.02, 0.3]), loss="cauchy", f_scale=0.2, bounds=(-12, 20)).x
        row = ", ".join(_rounded(n) for n in np.exp(solution))
        error = np.abs(off(solution))
        print(
            f'        "{operation}": ({row}),  # {len(group)} samples, '
            f"off by {math.exp(np.median(error)):.2f}x in the median, {math.exp(np.quantile(error, 0.9)):.2f}x at 90%",
            flush=True,
        )


def _rounded(number: float) -> str:
    """Two digits, as the table writes them; what is nothing within the bounds of the fit is 0."""
    if number < 1e-4:
        return "0"
    return f"{number:.2g}" if number < 10 else f"{float(f'{number:.2g}'):_.0f}"


def main() -> None:
    """Measure and fit."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fit_costs", description=__doc__)
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    device = parser.parse_args().device
    torch.manual_seed(0)
    samples = [operator_sample(device)]
    with torch.no_grad():
        for problem in depthwise_problems():
            problem = replace(problem, device=device)
            if problem.products < 4e8:
                samples += itertools.chain.from_iterable(map(torch_samples, torch_forms(problem)))
            if direct.why_not(problem) is None:
                samples += layout_samples(problem)
            samples += spectral_samples(problem)
        for problem in other_problems():
            samples += torch_samples(replace(problem, device=device))
            samples += spectral_samples(replace(problem, device=device))
    fit(samples, device)


if __name__ == "__main__":
    main()

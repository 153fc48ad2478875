"""What only the Fourier backend has: lengths, blocks, spectra that it keeps, and what it believes it costs."""

import math
from dataclasses import replace

import pytest
import torch
from tests.oracles import slow_convolution
from tests.tolerances import assert_close

from torchdcls.convolution import problem as problems
from torchdcls.convolution import spectral
from torchdcls.convolution.costs import estimate
from torchdcls.convolution.problem import Problem


def posed(batch, inputs, outputs, groups, spatial, size, padding, stride=None, **more):
    stride = (1,) * len(size) if stride is None else stride
    more = {"dtype": torch.float64, "input_gradient": True, "kernel_gradient": True} | more
    return Problem(batch, inputs, outputs, groups, spatial, size, padding, stride, **more)


PROBLEMS = {
    "depthwise": posed(2, 3, 3, 3, (9, 8), (5, 4), ((2, 2), (1, 2))),
    "dense": posed(3, 2, 5, 1, (7,), (4,), ((3, 0),)),
    "grouped": posed(2, 6, 4, 2, (6, 5), (3, 4), ((0, 3), (1, 1)), (2, 1)),
    "one output a group": posed(2, 6, 3, 3, (8,), (5,), ((2, 2),), (3,)),
    "3-D": posed(1, 2, 4, 2, (4, 3, 5), (2, 3, 1), ((1, 0), (1, 1), (0, 0)), (1, 2, 2)),
    "kernel above input": posed(2, 2, 2, 2, (3, 4), (7, 9), ((4, 5), (8, 6))),
    "one element": posed(1, 1, 1, 1, (1,), (1,), ((0, 0),)),
}
BLOCKS = {"one block": None, "a block for each group": 1, "two groups a block": 3000}


def tensors(of, dtype=torch.float64):
    x = torch.randn(of.input_shape, dtype=torch.float64).to(dtype)
    kernel = torch.randn(of.kernel_shape, dtype=torch.float64).to(dtype)
    return x, kernel, torch.randn(of.out_channels, dtype=torch.float64).to(dtype)


@pytest.fixture(params=BLOCKS.values(), ids=BLOCKS)
def blocks(request, monkeypatch):
    """Blocks of every size; the transforms of a problem are kept, blocks and all."""
    spectral._transforms.cache_clear()
    if request.param:
        monkeypatch.setitem(problems._BLOCK_BYTES, "cpu", request.param)
    yield
    spectral._transforms.cache_clear()


@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize("of", PROBLEMS.values(), ids=PROBLEMS)
def test_equals_torch_with_and_without_what_is_kept(of, keep, blocks):
    x, kernel, bias = tensors(of)
    output, kept_input, kept_kernel = spectral.forward(x, kernel, bias, of, keep)
    x.requires_grad_(), kernel.requires_grad_()
    expected = slow_convolution(x, kernel, bias, of.stride, of.padding, of.groups)
    assert_close(output, expected, "convolution")
    plain = spectral.forward(x.detach(), kernel.detach(), None, of, keep)[0]
    assert_close(plain + bias.view(-1, *[1] * of.axes), expected, "convolution")
    assert bool(kept_input.numel()) == keep
    assert bool(kept_kernel.numel()) == (keep and of.depthwise)
    direction = torch.randn_like(expected)
    theirs = torch.autograd.grad(expected, (x, kernel), direction)
    x, kernel = x.detach(), kernel.detach()
    ours = spectral.backward(direction, x, kernel, kept_input, kept_kernel, of)
    for a, b in zip(ours, theirs, strict=True):
        assert_close(a, b, "convolution")
    for asked in ("input_gradient", "kernel_gradient"):
        one = replace(of, **{asked: False})
        dx, dk = spectral.backward(direction, x, kernel, kept_input, kept_kernel, one)
        assert (dx is None) == (asked == "input_gradient")
        assert (dk is None) == (asked == "kernel_gradient")
        assert_close(dk if dx is None else dx, theirs[dx is None], "convolution")


def test_what_is_kept_is_what_is_used():
    of = PROBLEMS["depthwise"]
    x, kernel, bias = tensors(of)
    _, kept_input, kept_kernel = spectral.forward(x, kernel, bias, of, keep=True)
    direction = torch.randn(of.output_shape, dtype=torch.float64)
    dx, dk = spectral.backward(direction, x, kernel, kept_input, kept_kernel, of)
    twice_dx, twice_dk = spectral.backward(direction, x, kernel, 2 * kept_input, 2 * kept_kernel, of)
    assert_close(twice_dx, 2 * dx, "convolution")
    assert_close(twice_dk, 2 * dk, "convolution")
    # the spectrum of an input without padding, and of the kernel, of the whole
    assert kept_input.shape == (2 * 3 * 12 * 6,)
    assert kept_kernel.shape == (3 * 12 * 6,)
    assert kept_input.dtype == torch.complex128


def test_half_precision_is_transformed_in_single():
    of = replace(PROBLEMS["depthwise"], dtype=torch.float16)
    x, kernel, bias = tensors(of, torch.float16)
    output, kept_input, _ = spectral.forward(x, kernel, bias, of, keep=True)
    assert output.dtype == torch.float16
    assert kept_input.dtype == torch.complex64
    assert_close(output, slow_convolution(x.double(), kernel.double(), bias.double(), 1, of.padding, 3), "convolution")


@pytest.mark.parametrize(
    ("spatial", "size", "padding", "length"),
    [
        (56, 23, (11, 11), 70),  # input and the larger padding: 67
        (56, 23, (22, 0), 80),  # 78
        (5, 30, (13, 12), 30),  # the kernel
        (10, 3, (0, 0), 10),  # the input
        (4, 1, (4, 4), 12),  # the outputs, 12
        (1, 1, (0, 0), 1),
        (3, 2, (0, 0), 4),
        (121, 1, (0, 0), 126),  # neither 121 = 11² nor 122 = 2 · 61 nor 124 = 4 · 31
    ],
)
def test_lengths(spatial, size, padding, length):
    assert spectral.lengths(posed(1, 1, 1, 1, (spatial,), (size,), (padding,))) == (length,)


def test_blocks_split_groups_and_the_outputs_of_a_large_group(monkeypatch):
    monkeypatch.setitem(problems._BLOCK_BYTES, "cpu", 2048)
    spectral._transforms.cache_clear()
    # lengths (16,), so 64 bytes a map: a group has at most 2 x 3 maps in it, 384 bytes
    many = spectral.Transforms(posed(2, 12, 18, 6, (14,), (3,), ((1, 1),), dtype=torch.float32))
    assert many.lengths == (16,)
    assert [(g.start, g.stop) for g, _ in many.blocks] == [(0, 5), (5, 6)]
    assert [[(o.start, o.stop) for o in parts] for _, parts in many.blocks] == [[(0, 15)], [(15, 18)]]
    assert [(s.start, s.stop) for s in (many.inputs_of(slice(0, 5)), many.inputs_of(slice(5, 6)))] == [
        (0, 10),
        (10, 12),
    ]
    # one group of 40 x 30 kernels: the outputs are split, as many as 40 channels each allow
    large = spectral.Transforms(posed(2, 40, 30, 1, (14,), (3,), ((1, 1),), dtype=torch.float32))
    assert [(g.start, g.stop) for g, _ in large.blocks] == [(0, 1)]
    assert [(o.start, o.stop) for o in large.blocks[0][1]] == [(n, n + 1) for n in range(30)]
    roomy = spectral.Transforms(posed(2, 4, 30, 1, (14,), (3,), ((1, 1),), dtype=torch.float32))
    assert [(o.start, o.stop) for o in roomy.blocks[0][1]] == [(0, 8), (8, 16), (16, 24), (24, 30)]
    spectral._transforms.cache_clear()


def test_transforms_of_a_problem_are_made_once():
    of = PROBLEMS["grouped"]
    spectral._transforms.cache_clear()
    for _ in range(2):
        spectral.forward(*tensors(of), of, keep=False)
    assert spectral._transforms.cache_info()[:3] == (1, 1, 256)


@pytest.mark.parametrize("channels_last", [False, True])
def test_the_inputs_layout_is_returned(channels_last):
    of = replace(PROBLEMS["depthwise"], channels_last=channels_last)
    x, kernel, bias = tensors(of)
    output, *kept = spectral.forward(x, kernel, bias, of, keep=False)
    dx, _ = spectral.backward(torch.randn_like(output), x, kernel, *kept, of)
    for result in (output, dx):
        assert result.is_contiguous(memory_format=torch.channels_last) == channels_last


def test_matrices_are_contiguous():
    # a product of strided ones takes up to 20 times as long
    for groups, spectrum in ((0, torch.randn(2, 3, 4, 5, 6)), (1, torch.randn(3, 2, 4, 5, 6))):
        matrices = spectral.matrices(spectrum, groups)
        assert matrices.shape == (2, 30, 3, 4)
        assert matrices.is_contiguous()
        assert torch.equal(matrices[1, 8], spectrum.movedim(groups, 0)[1, :, :, 1, 2])


@pytest.mark.parametrize(
    ("asked", "depthwise", "dense"),
    [
        ((False, False), (2, 1, 1), (2, 1, 1)),
        ((True, False), (4, 1, 2), (4, 2, 2)),  # kernels of dense problems are transformed anew
        ((False, True), (3, 2, 2), (3, 2, 2)),
        ((True, True), (4, 2, 3), (4, 3, 3)),
    ],
)
def test_costs_count_transforms_and_products(asked, depthwise, dense, monkeypatch):
    for groups, numbers in ((6, depthwise), (1, dense)):
        of = posed(2, 6, 6, groups, (9, 8), (5, 5), ((2, 2), (2, 2)), input_gradient=asked[0], kernel_gradient=asked[1])
        counted = {}

        def count(operation, problem, products, elements, counted=counted):
            counted[operation] = counted.get(operation, 0) + 1
            return 1.0

        monkeypatch.setattr(spectral, "estimate", count)
        assert spectral.cost(of) == sum(numbers)
        product = "multiply" if groups == 6 else "multiply matrices"
        form = "" if groups == 6 else ", dense"
        names = (f"transform{form}", f"transform kernels{form}", product)
        assert counted == dict(zip(names, numbers, strict=True))
        counted.clear()
        assert spectral.kernel_gradient_cost(of) == 4
        assert counted == dict(zip(names, (2, 1, 1), strict=True))


def test_costs_are_those_of_the_table_for_the_work_there_is():
    of = posed(2, 6, 12, 3, (9, 8), (5, 5), ((2, 2), (2, 2)), input_gradient=False, kernel_gradient=False)
    points = 12 * 10
    for maps in (3, 24):
        work = spectral.transform_work(of, maps)
        assert work == (pytest.approx(maps * points * math.log2(points + 1)), maps * points)
    kernels = 12 * 2
    assert spectral.product_work(of) == (points / 2 * 2 * kernels, points / 2 * (2 * (6 + 12) + kernels))
    inputs, outputs = (estimate("transform, dense", of, *spectral.transform_work(of, 2 * n)) for n in (6, 12))
    kernel = estimate("transform kernels, dense", of, *spectral.transform_work(of, kernels))
    product = estimate("multiply matrices", of, *spectral.product_work(of))
    once = inputs + outputs + kernel + product
    assert spectral.kernel_gradient_cost(of) == pytest.approx(once)
    assert spectral.cost(of) == pytest.approx(once)
    backward = inputs + outputs + kernel + product
    assert spectral.cost(replace(of, input_gradient=True)) == pytest.approx(once + backward)
    assert spectral.cost(replace(of, kernel_gradient=True)) == pytest.approx(once + outputs + kernel + product)
    both = replace(of, input_gradient=True, kernel_gradient=True)
    assert spectral.cost(both) == pytest.approx(once + backward + kernel + product)


@pytest.mark.parametrize(
    ("batch", "side", "size", "kept"),
    [
        (8, 56, 23, True),  # 0.45 times input and output
        (8, 56, 51, True),  # 0.65
        (8, 28, 31, False),  # 0.86
        (1, 28, 23, False),  # 1.07, half of it the spectra of kernels
    ],
)
def test_spectra_are_kept_where_they_are_smaller_than_most_of_input_and_output(batch, side, size, kept):
    pair = (size // 2, size // 2)
    of = posed(batch, 6, 6, 6, (side, side), (size, size), (pair, pair), input_gradient=True, kernel_gradient=True)
    assert spectral.keeps(of) is kept
    assert spectral.keeps(replace(of, input_gradient=False)) is kept
    assert not spectral.keeps(replace(of, input_gradient=False, kernel_gradient=False))


def test_transforms_are_named_by_what_is_done_besides():
    of = posed(2, 6, 6, 6, (9, 8), (5, 5), ((2, 2), (2, 2)))
    assert (spectral.transform_name(of), spectral.kernel_transform_name(of)) == ("transform", "transform kernels")
    assert spectral.transform_name(replace(of, channels_last=True)) == "transform, channels last"
    dense = replace(of, groups=1, channels_last=True)
    names = (spectral.transform_name(dense), spectral.kernel_transform_name(dense))
    assert names == ("transform, dense", "transform kernels, dense")
    line = posed(2, 6, 6, 6, (9,), (5,), ((2, 2),))
    assert spectral.transform_name(line) == "transform, 1-D"


def test_there_is_nothing_to_transform_in_nothing():
    of = posed(0, 1, 1, 1, (4,), (3,), ((1, 1),))
    assert spectral.why_not(of) == "there is nothing to transform in an empty input"
    assert spectral.why_not(replace(of, batch=1)) is None

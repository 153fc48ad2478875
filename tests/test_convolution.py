import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from tests.tolerances import assert_close, relative_error
from torch._subclasses.fake_tensor import FakeTensorMode

from torchdcls import Conv2d, Conv3d, Dcls2d, convolve
from torchdcls.convolution import BACKENDS, direct, plain, spectral
from torchdcls.convolution import problem as problems_module
from torchdcls.convolution.backends import choose
from torchdcls.convolution.problem import Problem

NAMES = [backend.NAME for backend in BACKENDS]
FAST = [name for name in NAMES if name != "torch"]
CONVOLUTIONS = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}


def reference(x, kernel, bias, stride, pairs, groups):
    """torch's convolution of an input padded beforehand."""
    padded = F.pad(x, [amount for pair in reversed(pairs) for amount in pair])
    return CONVOLUTIONS[kernel.dim() - 2](padded, kernel, bias, stride, 0, 1, groups)


@st.composite
def problems(draw):
    """Sizes of every kind: flat, kernels larger than the input, one channel, a batch of one, uneven padding."""
    axes = draw(st.integers(1, 3))
    spatial = draw(st.tuples(*[st.integers(1, (40, 12, 6)[axes - 1])] * axes))
    size = draw(st.tuples(*[st.integers(1, (50, 15, 7)[axes - 1])] * axes))
    pairs = []
    for n, k in zip(spatial, size, strict=True):
        before = draw(st.integers(0, k + 1))
        after = draw(st.one_of(st.just(before), st.integers(0, k + 1)))
        pairs.append((before, max(after, k - n - before)))
    groups = draw(st.integers(1, 4))
    inputs, outputs = draw(st.sampled_from([(1, 1), (1, 1), (2, 1), (1, 2), (3, 2)]))
    stride = draw(st.sampled_from([(1,) * axes, (1,) * axes, (2,) * axes, (3, 1, 2)[:axes]]))
    return draw(st.integers(1, 3)), groups, inputs, outputs, spatial, size, tuple(pairs), stride


def tensors(problem, dtype=torch.float64):
    batch, groups, inputs, outputs, spatial, size, _, _ = problem
    torch.manual_seed(0)
    x = torch.randn(batch, groups * inputs, *spatial, dtype=torch.float64).to(dtype).requires_grad_()
    kernel = torch.randn(groups * outputs, inputs, *size, dtype=torch.float64).to(dtype).requires_grad_()
    bias = torch.randn(groups * outputs, dtype=torch.float64).to(dtype).requires_grad_()
    return x, kernel, bias


def refused(backend, problem):
    """Whether direct and mixed, which are for depthwise convolutions in one and two dimensions, refuse."""
    _, _, inputs, outputs, spatial, size, pairs, stride = problem
    moves = any(n + sum(pair) - k >= s > 1 for n, pair, k, s in zip(spatial, pairs, size, stride, strict=True))
    plain_depthwise = inputs == outputs == 1 and len(spatial) < 3 and not moves
    return backend in ("direct", "mixed") and not plain_depthwise


@pytest.mark.parametrize("backend", ["auto", *NAMES])
@given(problem=problems())
def test_equals_torch_in_value_and_gradient(backend, problem):
    _, groups, *_, pairs, stride = problem
    inputs = tensors(problem)
    expected = reference(*inputs, stride, pairs, groups)
    if refused(backend, problem):
        with pytest.raises(ValueError, match="can't do this convolution"):
            convolve(*inputs, stride, pairs, groups, backend=backend)
        return
    output = convolve(*inputs, stride, pairs, groups, backend=backend)
    direction = torch.randn_like(expected)
    assert_close(output, expected, "convolution")
    theirs = torch.autograd.grad(expected, inputs, direction)
    for a, b in zip(torch.autograd.grad(output, inputs, direction), theirs, strict=True):
        assert_close(a, b, "convolution")


LARGE = {
    "2-D": (2, 8, 1, 1, (56, 56), (23, 23), ((11, 11), (11, 11)), (1, 1)),
    "2-D cut": (2, 8, 1, 1, (7, 7), (23, 23), ((11, 11), (11, 11)), (1, 1)),
    "2-D small": (2, 8, 1, 1, (14, 14), (7, 7), ((3, 3), (3, 3)), (1, 1)),
    "1-D": (2, 8, 1, 1, (1000,), (101,), ((50, 50),), (1,)),
    "1-D dense": (4, 1, 32, 24, (124,), (25,), ((24, 12),), (1,)),
    "3-D": (1, 8, 1, 1, (8, 16, 16), (7, 11, 11), ((3, 3), (5, 5), (5, 5)), (1, 1, 1)),
}


@pytest.mark.parametrize("backend", ["auto", *NAMES])
@pytest.mark.parametrize("problem", LARGE.values(), ids=LARGE)
def test_float32_is_as_exact_as_torchs(backend, problem):
    _, groups, *_, pairs, stride = problem
    exact, single = tensors(problem), tensors(problem, torch.float32)
    if refused(backend, problem):
        pytest.skip("refused, as test_every_refusal_gives_its_reason shows")
    output = convolve(*single, stride, pairs, groups, backend=backend)
    expected, theirs = reference(*exact, stride, pairs, groups), reference(*single, stride, pairs, groups)
    direction = torch.randn_like(expected)
    ours_all = [output, *torch.autograd.grad(output, single, direction.float())]
    theirs_all = [theirs, *torch.autograd.grad(theirs, single, direction.float())]
    exact_all = [expected, *torch.autograd.grad(expected, exact, direction)]
    for ours, torchs, right in zip(ours_all, theirs_all, exact_all, strict=True):
        assert relative_error(ours, right) <= 3 * relative_error(torchs, right)


@pytest.mark.parametrize("backend", FAST)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision(backend, dtype):
    problem = LARGE["2-D small"]
    _, groups, *_, pairs, stride = problem
    inputs = tensors(problem, dtype)
    expected = reference(*(t.double() for t in inputs), stride, pairs, groups)
    output = convolve(*inputs, stride, pairs, groups, backend=backend)
    assert output.dtype == dtype
    assert_close(output, expected, "convolution")
    direction = torch.randn_like(expected)
    theirs = torch.autograd.grad(expected, inputs, direction)
    for a, b in zip(torch.autograd.grad(output, inputs, direction.to(dtype)), theirs, strict=True):
        assert a.dtype == dtype
        assert_close(a, b, "convolution")


@pytest.mark.parametrize("backend", FAST)
def test_autocast(backend):
    x, kernel, bias = tensors(LARGE["2-D small"], torch.float32)
    arguments = {"padding": 3, "groups": 8, "backend": backend}
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output = convolve(x, kernel, bias, **arguments)
        mixed = convolve(x.bfloat16(), kernel, bias, **arguments)
    assert output.dtype == mixed.dtype == torch.bfloat16
    assert_close(output, convolve(x, kernel, bias, **arguments), "convolution")
    output.float().sum().backward()
    assert kernel.grad.dtype == torch.float32


@pytest.mark.parametrize("backend", ["auto", *NAMES])
@pytest.mark.parametrize("last", [False, True])
def test_the_callers_memory_layout_is_returned(backend, last):
    layout = torch.channels_last if last else torch.contiguous_format
    x = torch.randn(2, 8, 14, 14).contiguous(memory_format=layout).requires_grad_()
    for size in (5, 23):
        kernel = torch.randn(8, 1, size, size, requires_grad=True)
        output = convolve(x, kernel, padding=size // 2, groups=8, backend=backend)
        assert output.is_contiguous(memory_format=layout)
        (gradient,) = torch.autograd.grad(output.square().sum(), x)
        assert gradient.is_contiguous(memory_format=layout)


@pytest.mark.parametrize("backend", FAST)
def test_any_strides_are_right(backend):
    x = torch.randn(14, 2, 8, 20).permute(1, 2, 0, 3)[..., ::2].requires_grad_()
    kernel = torch.randn(9, 9, 8).permute(2, 0, 1).unsqueeze(1).requires_grad_()
    output = convolve(x, kernel, padding=4, groups=8, backend=backend)
    expected = F.conv2d(x, kernel, padding=4, groups=8)
    assert_close(output, expected, "convolution")
    for gradient in (torch.ones(()).expand_as(expected), torch.randn(2, 14, 10, 8).permute(0, 3, 1, 2)):
        ours = torch.autograd.grad(output, (x, kernel), gradient, retain_graph=True)
        theirs = torch.autograd.grad(expected, (x, kernel), gradient, retain_graph=True)
        for a, b in zip(ours, theirs, strict=True):
            assert_close(a, b, "gradient")


@pytest.mark.parametrize("backend", FAST)
@pytest.mark.parametrize(
    "asked", [(True, False, False), (False, True, False), (False, False, True), (True, True, False)]
)
def test_only_the_gradients_that_are_asked_for(backend, asked):
    inputs = tensors(LARGE["2-D small"])
    for tensor, wanted in zip(inputs, asked, strict=True):
        tensor.requires_grad_(wanted)
    output = convolve(*inputs, padding=3, groups=8, backend=backend)
    expected = F.conv2d(*inputs, padding=3, groups=8)
    leaves = [tensor for tensor, wanted in zip(inputs, asked, strict=True) if wanted]
    ours, theirs = (torch.autograd.grad(y.square().sum(), leaves) for y in (output, expected))
    for a, b in zip(ours, theirs, strict=True):
        assert_close(a, b, "convolution")


@pytest.mark.parametrize("backend", FAST)
@pytest.mark.parametrize("size", [(3,), (3, 2), (2, 3, 2)], ids=str)
@pytest.mark.parametrize("groups", [1, 2])
def test_gradients_of_gradients(backend, size, groups):
    depthwise = {"direct", "mixed"} & {backend}
    if depthwise and (groups == 1 or len(size) == 3):
        pytest.skip("refused, as test_every_refusal_gives_its_reason shows")
    spatial = (5, 4, 3)[: len(size)]
    inputs = [torch.randn(2, 2, *spatial), torch.randn(2, 2 // groups, *size), torch.randn(2)]
    inputs = [tensor.double().requires_grad_() for tensor in inputs]

    def run(x, kernel, bias):
        return convolve(x, kernel, bias, padding=1, groups=groups, backend=backend)

    assert torch.autograd.gradcheck(run, inputs)
    assert torch.autograd.gradgradcheck(run, inputs)


@pytest.mark.parametrize("backend", FAST)
def test_second_derivatives_of_both_gradients_at_once(backend):
    # gradgradcheck asks for those of one gradient at a time
    x, kernel, _ = tensors(LARGE["2-D small"])
    direction, ddx, ddk = torch.randn_like(x, requires_grad=True), torch.randn_like(x), torch.randn_like(kernel)
    results = []
    for name in (backend, "torch"):
        output = convolve(x, kernel, padding=3, groups=8, backend=name)
        dx, dk = torch.autograd.grad(output, (x, kernel), direction, create_graph=True)
        results.append(torch.autograd.grad((dx * ddx).sum() + (dk * ddk).sum(), (direction, x, kernel)))
    for ours, theirs in zip(*results, strict=True):
        assert_close(ours, theirs, "convolution")


@pytest.mark.parametrize("backend", FAST)
@pytest.mark.parametrize("dynamic", [None, True])
def test_compiles_whole(backend, dynamic):
    torch.compiler.reset()
    x, kernel, bias = tensors(LARGE["2-D small"])

    def run(x, kernel, bias):
        return convolve(x, kernel, bias, padding=3, groups=8, backend=backend)

    compiled = torch.compile(run, fullgraph=True, dynamic=dynamic, backend="aot_eager")
    for cut in (14, 13, 11):
        inputs = (x[..., :cut, :].detach(), kernel, bias)
        output, expected = compiled(*inputs), run(*inputs)
        assert_close(output, expected, "convolution")
        ours, theirs = (torch.autograd.grad(y.square().sum(), inputs[1:]) for y in (output, expected))
        for a, b in zip(ours, theirs, strict=True):
            assert_close(a, b, "convolution")


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # opcheck's own doing
@pytest.mark.parametrize("backend", FAST)
@pytest.mark.parametrize("keep", [False, True])
def test_the_operators_are_registered_as_torch_wants_them(backend, keep):
    x, kernel, bias = tensors((2, 4, 1, 1, (9, 8), (5, 4), None, None))
    geometry = ([1, 1], [2, 2, 1, 2], 4, backend)
    operators = torch.ops.torchdcls
    torch.library.opcheck(operators.convolve.default, (x, kernel, bias, *geometry, keep and backend == "spectral"))
    empty = x.new_empty(0)
    arguments = (torch.randn(2, 4, 9, 8).double().requires_grad_(), x, kernel, empty, empty, *geometry)
    torch.library.opcheck(operators.convolve_backward.default, (*arguments, True, keep))


def test_a_training_step_takes_four_transforms_of_the_inputs_size(monkeypatch):
    counted = {"forward": 0, "back": 0}
    rfftn, irfftn = torch.fft.rfftn, torch.fft.irfftn

    def count(name, function):
        def counting(tensor, **arguments):
            counted[name] += tensor.shape[0] == 2  # with a batch: not the kernel's
            return function(tensor, **arguments)

        return counting

    monkeypatch.setattr(torch.fft, "rfftn", count("forward", rfftn))
    monkeypatch.setattr(torch.fft, "irfftn", count("back", irfftn))
    x, kernel, bias = tensors((2, 8, 1, 1, (14, 14), (7, 7), None, None), torch.float32)
    convolve(x, kernel, bias, padding=3, groups=8, backend="spectral").sum().backward()
    assert counted == {"forward": 2, "back": 2}


@given(st.integers(1, 2000))
def test_transform_lengths(minimum):
    length = spectral.fast_length(minimum)
    assert length >= minimum
    assert length == 1 or length % 2 == 0
    rest = length
    for factor in (2, 3, 5, 7):
        while rest % factor == 0:
            rest //= factor
    assert rest == 1


def test_same_needs_no_longer_transform_than_input_and_half_a_kernel():
    problem = Problem(1, 1, 1, 1, (56,), (23,), ((11, 11),), (1,), torch.float32)
    assert spectral.lengths(problem) == (70,)  # the smallest fast length from 56 + 11 on


@pytest.mark.parametrize(
    ("batch", "channels", "side", "size"), [(8, 96, 56, 23), (64, 192, 14, 23), (64, 384, 7, 13), (1, 192, 56, 23)]
)
def test_memory_stays_below_three_times_input_and_output(batch, channels, side, size):
    from benchmarks.harness import peak_memory

    x, kernel, bias = tensors((batch, channels, 1, 1, (side, side), (size, size), None, None), torch.float32)
    direction = torch.randn_like(x)

    def step():
        output = convolve(x, kernel, bias, padding=size // 2, groups=channels, backend="spectral")
        torch.autograd.grad(output, (x, kernel, bias), direction)

    blocks = 4 * 2**21  # which do not grow with the problem
    assert peak_memory(step, torch.device("cpu")) <= 3 * (x.nbytes + direction.nbytes) + blocks


@pytest.mark.parametrize("axes", [2, 3])
@pytest.mark.parametrize("backend", ["auto", "spectral"])
def test_channels_last_in_two_and_three_dimensions(axes, backend):
    layout = torch.channels_last if axes == 2 else torch.channels_last_3d
    x = torch.randn(2, 8, *[12] * axes).contiguous(memory_format=layout).requires_grad_()
    kernel = torch.randn(8, 1, *[7] * axes)
    output = convolve(x, kernel, padding=3, groups=8, backend=backend)
    (gradient,) = torch.autograd.grad(output.sum(), x)
    assert output.is_contiguous(memory_format=layout)
    assert gradient.is_contiguous(memory_format=layout)
    assert_close(output, CONVOLUTIONS[axes](x, kernel, padding=3, groups=8), "convolution")


@pytest.mark.parametrize("side", [56, 14])
@pytest.mark.parametrize("backend", ["auto", *FAST])
def test_shapes_without_data(backend, side):
    def step(device):
        x, kernel = torch.randn(8, 96, side, side, device=device), torch.randn(96, 1, 23, 23, device=device)
        x.requires_grad_(), kernel.requires_grad_()
        output = convolve(x, kernel, padding=11, groups=96, backend=backend)
        return [output.shape, *(g.shape for g in torch.autograd.grad(output.sum(), (x, kernel)))]

    expected = step("cpu")
    with FakeTensorMode():
        assert step("cpu") == expected
    if backend in ("auto", "spectral"):  # the others are for CPUs
        assert step("meta") == expected


def test_autocast_leaves_float64_alone():
    x, kernel, _ = tensors(LARGE["2-D small"])
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert convolve(x, kernel, padding=3, groups=8).dtype == torch.float64


@pytest.mark.parametrize("backend", ["torch", "direct"])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_what_is_not_a_number_stays_where_torch_puts_it(backend, value):
    x = torch.randn(2, 4, 16, 16)
    x[0, 1, 3, 3] = value
    kernel = torch.rand(4, 1, 5, 5) + 0.1
    output = convolve(x, kernel, padding=2, groups=4, backend=backend)
    assert torch.equal(output.isfinite(), F.conv2d(x, kernel, padding=2, groups=4).isfinite())


@pytest.mark.parametrize("width", direct.SLOW_WIDTHS)
def test_slow_widths_spread_what_is_not_a_number_by_two_columns_at_most(width):
    x = torch.randn(2, 16, 40, 40).contiguous(memory_format=torch.channels_last)
    x[0, 3, 20, 20] = float("nan")
    kernel = torch.rand(16, 1, 15, width)
    padding = (7, width // 2)
    output = convolve(x, kernel, padding=padding, groups=16, backend="direct")
    expected = F.conv2d(x, kernel, padding=padding, groups=16)
    broken, torchs = output.isnan(), expected.isnan()
    assert_close(output[~broken], expected[~broken], "convolution")
    assert broken.any(-1).equal(torchs.any(-1))
    assert width < broken[0, 3].any(0).sum() <= width + 4


def test_spectral_spreads_what_is_not_a_number_over_its_map_and_no_further():
    x = torch.randn(2, 4, 16, 16)
    x[0, 1, 3, 3] = float("nan")
    output = convolve(x, torch.randn(4, 1, 5, 5), padding=2, groups=4, backend="spectral")
    assert output[0, 1].isnan().all()
    output[0, 1] = 0
    assert output.isfinite().all()


@pytest.mark.parametrize("padding_mode", ["reflect", "replicate", "circular"])
@pytest.mark.parametrize("backend", FAST)
def test_padding_modes(backend, padding_mode):
    x, kernel, bias = tensors(LARGE["2-D small"])
    expected = F.conv2d(F.pad(x, (3, 2, 1, 3), mode=padding_mode), kernel, bias, groups=8)
    output = convolve(x, kernel, bias, 1, ((1, 3), (3, 2)), 8, padding_mode, backend)
    assert_close(output, expected, "convolution")
    last = x.detach().contiguous(memory_format=torch.channels_last)
    output = convolve(last, kernel, bias, 1, ((1, 3), (3, 2)), 8, padding_mode, backend)
    assert output.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("backend", ["auto", *NAMES])
def test_unbatched_input_and_empty_batch(backend):
    x, kernel, bias = tensors(LARGE["2-D small"])
    arguments = {"padding": 3, "groups": 8, "backend": backend}
    assert_close(convolve(x[0], kernel, bias, **arguments), convolve(x, kernel, bias, **arguments)[0], "convolution")
    if backend in ("auto", "torch"):
        assert convolve(x[:0], kernel, bias, **arguments).shape == (0, 8, 14, 14)


def test_an_even_size_that_torch_fails_at():
    # torch 2.14.1 raises "could not create a primitive descriptor" for this padding on some processors
    x, kernel = torch.randn(8, 16, 28, 28, requires_grad=True), torch.randn(16, 1, 14, 14, requires_grad=True)
    output = convolve(x, kernel, padding=7, groups=16, backend="direct")
    assert_close(output, F.conv2d(F.pad(x, (7, 7, 7, 7)), kernel, groups=16), "convolution")


@given(problems())
def test_the_choice_is_always_the_same_and_can_be_made(problem):
    batch, groups, inputs, outputs, spatial, size, pairs, stride = problem
    posed = Problem(
        batch,
        groups * inputs,
        groups * outputs,
        groups,
        spatial,
        size,
        pairs,
        stride,
        torch.float32,
        False,
        "cpu",
        True,
        True,
    )
    chosen = choose(posed)
    assert chosen == choose(posed)
    assert next(b for b in BACKENDS if chosen == b.NAME).why_not(posed) is None
    assert choose(Problem(**{**posed.__dict__, "device": "cuda"})) in ("torch", "spectral")


@pytest.mark.parametrize("device", ["cpu", "cuda", "another"])
@given(problem=problems(), last=st.booleans())
def test_every_backend_knows_what_it_costs_on_every_device(device, problem, last):
    batch, groups, inputs, outputs, spatial, size, pairs, stride = problem
    channels = (groups * inputs, groups * outputs)
    posed = Problem(batch, *channels, groups, spatial, size, pairs, stride, torch.float32, last, device, True, True)
    for backend in BACKENDS:
        if backend.why_not(posed) is None:
            assert 0 < backend.cost(posed) < math.inf


def test_kernels_too_wide_for_torchs_fast_ways_cost_more():
    def cost(size, channels, groups):
        pairs = ((size // 2, size // 2),)
        posed = Problem(4, channels, channels, groups, (500,), (size,), pairs, (1,), torch.float32)
        return plain.cost(replace(posed, input_gradient=True, kernel_gradient=True)) / posed.products

    assert cost(17, 64, 1) > 1.2 * cost(13, 64, 1)  # unfolded
    assert cost(13, 16, 4) > 2 * cost(13, 64, 4)  # four channels a group fill no vector
    assert cost(17, 16, 1) > 1.5 * cost(17, 128, 1)  # what is unfolded is used for fewer outputs


@pytest.mark.parametrize(
    ("batch", "groups", "bytes_each", "tiles", "first"),
    [
        (2, 40, 2**20, 6, (1, 16)),  # a line of groups is more than a block: an item at a time
        (2, 40, 2**16, 3, (2, 16)),
        (64, 40, 2**14, 24, (8, 16)),
        (2, 40, 2**10, 1, (2, 40)),
        (3, 5, 2**19, 3, (1, 5)),
    ],
)
def test_tiles_hold_every_map_once_and_whole_lines_of_channels(batch, groups, bytes_each, tiles, first):
    pairs = ((1, 1),) * 2
    posed = Problem(batch, groups, groups, groups, (9, 9), (3, 3), pairs, (1, 1), torch.float32)
    found = posed.tiles(bytes_each)
    counted = torch.zeros(batch, groups)
    for items, block in found:
        counted[items, block] += 1
        assert block.start % 16 == 0
    assert (counted == 1).all()
    assert len(found) == tiles
    items, block = found[0]
    assert (items.stop, block.stop) == first


@pytest.mark.parametrize("last", [False, True], ids=["channels first", "channels last"])
def test_direct_is_right_tile_by_tile(last, monkeypatch):
    monkeypatch.setitem(problems_module._BLOCK_BYTES, "cpu", 2**13)
    layout = torch.channels_last if last else torch.contiguous_format
    for size, padding in ((3, 1), (17, 8)):
        torch.manual_seed(0)
        x = torch.randn(3, 40, 12, 12, dtype=torch.float64).contiguous(memory_format=layout).requires_grad_()
        kernel = torch.randn(40, 1, size, size, dtype=torch.float64, requires_grad=True)
        bias = torch.randn(40, dtype=torch.float64, requires_grad=True)
        output = convolve(x, kernel, bias, padding=padding, groups=40, backend="direct")
        expected = F.conv2d(x, kernel, bias, padding=padding, groups=40)
        assert_close(output, expected, "convolution")
        direction = torch.randn_like(expected)
        gradients = torch.autograd.grad(output, (x, kernel, bias), direction)
        for ours, torchs in zip(gradients, torch.autograd.grad(expected, (x, kernel, bias), direction), strict=True):
            assert_close(ours, torchs, "gradient")


def test_large_kernels_are_not_left_to_torch():
    for channels, n in ((96, 56), (192, 28), (384, 14), (768, 7)):
        problem = Problem(
            8,
            channels,
            channels,
            channels,
            (n, n),
            (23, 23),
            ((11, 11),) * 2,
            (1, 1),
            torch.float32,
            False,
            "cpu",
            True,
            True,
        )
        assert choose(problem.cut(problem.reachable())) != "torch"


REFUSALS = {
    "direct-dense": ("direct", (2, 4, 4, 1), 1, "depthwise convolutions only"),
    "mixed-dense": ("mixed", (2, 4, 4, 1), 1, "depthwise convolutions only"),
    "direct-stride": ("direct", (2, 4, 4, 4), 2, r"a stride of 1 only, got \(2, 2\)"),
    "spectral-empty": ("spectral", (0, 4, 4, 1), 1, "nothing to transform in an empty input"),
}


@pytest.mark.parametrize(("backend", "shape", "stride", "reason"), REFUSALS.values(), ids=REFUSALS)
def test_every_refusal_gives_its_reason(backend, shape, stride, reason):
    batch, inputs, outputs, groups = shape
    x, kernel = torch.randn(batch, inputs, 8, 8), torch.randn(outputs, inputs // groups, 3, 3)
    with pytest.raises(ValueError, match=f"backend '{backend}' can't do this convolution: .*{reason}"):
        convolve(x, kernel, stride=stride, groups=groups, backend=backend)


def test_direct_refuses_three_dimensions_and_other_devices():
    x, kernel = torch.randn(1, 2, 4, 4, 4), torch.randn(2, 1, 3, 3, 3)
    with pytest.raises(ValueError, match="no faster form in three dimensions"):
        convolve(x, kernel, groups=2, backend="direct")
    with pytest.raises(ValueError, match="no faster form on meta"):
        convolve(x[:, :, 0].to("meta"), kernel[:, :, 0].to("meta"), groups=2, backend="direct")


def test_layers_take_a_backend():
    x = torch.randn(1, 4, 12, 12)
    layer = Dcls2d(4, 4, 3, 7, padding=3, groups=4, backend="spectral")
    assert "backend=spectral" in repr(layer)
    conv = layer.to_conv()
    assert conv.backend == "spectral"
    assert_close(conv(x), layer(x), "convolution")
    assert Conv2d(4, 4, 3).backend == "auto"
    with pytest.raises(ValueError, match="backend must be one of auto, torch, direct, spectral, mixed, got 'fft'"):
        Conv3d(4, 4, 3, backend="fft")
    with pytest.raises(ValueError, match="can't do this convolution"):
        Conv2d(4, 4, 3, backend="direct")(x)
    with pytest.raises(ValueError, match=r"backend must be auto or torch for a dilation of \(2, 2\)"):
        Conv2d(4, 4, 3, dilation=2, backend="spectral")


@pytest.mark.parametrize("backend", ["auto", "spectral"])
def test_exports_as_the_plain_operation(backend):
    layer = Dcls2d(4, 4, 3, 23, padding="same", groups=4, backend=backend).eval()
    x = torch.randn(1, 4, 14, 14)
    exported = torch.export.export(layer, (x,))
    names = {str(node.target) for node in exported.graph.nodes}
    assert any("conv2d" in name for name in names)
    assert not any("torchdcls" in name or "fft" in name for name in names)
    assert_close(exported.module()(x), layer(x), "convolution")


@pytest.mark.filterwarnings("ignore:`torch.jit:FutureWarning", "ignore::torch.jit.TracerWarning")
def test_traces_as_the_plain_operation():
    conv = Dcls2d(4, 4, 3, 23, padding="same", groups=4, backend="spectral").to_conv()
    x = torch.randn(1, 4, 14, 14)
    traced = torch.jit.trace(conv, x)
    assert "torchdcls::" not in str(traced.graph)
    assert_close(traced(x), conv(x), "convolution")


def test_function_transforms():
    x, kernel, bias = tensors(LARGE["2-D small"])

    def energy(kernel):
        return convolve(x, kernel, bias, padding=3, groups=8, backend="spectral").square().sum()

    energy(kernel).backward()
    assert_close(torch.func.grad(energy)(kernel.detach()), kernel.grad, "gradient")
    kernels = torch.stack([kernel, 2 * kernel]).detach()
    outputs = torch.func.vmap(lambda k: convolve(x, k, bias, padding=3, groups=8))(kernels)
    assert_close(outputs[0], convolve(x, kernel, bias, padding=3, groups=8), "convolution")


@pytest.mark.parametrize("axes", [1, 2, 3])
def test_pairs_pad_each_side_on_its_own_and_negative_amounts_cut(axes):
    x = torch.randn(2, 4, *[9] * axes, dtype=torch.float64)
    kernel = torch.randn(6, 2, *[3] * axes, dtype=torch.float64)
    pairs = ((4, 1), (0, 2), (-2, 1))[:axes]
    assert_close(convolve(x, kernel, padding=pairs, groups=2), reference(x, kernel, None, 1, pairs, 2), "convolution")


def test_lists_do_as_tuples_do():
    x, kernel = torch.randn(1, 2, 8, 8), torch.randn(2, 1, 3, 3)
    lists = convolve(x, kernel, None, [1, 2], [[1, 0], [2, 2]], 2)
    assert torch.equal(lists, convolve(x, kernel, None, (1, 2), ((1, 0), (2, 2)), 2))


def test_spiking_padding_is_causal():
    x = torch.zeros(1, 1, 8)
    x[..., 3] = 1
    kernel = torch.arange(1.0, 5.0).view(1, 1, 4)
    assert convolve(x, kernel, padding=((3, 0),)).tolist() == [[[0, 0, 0, 4, 3, 2, 1, 0]]]


@pytest.mark.parametrize("name", ["stride", "padding", "groups"])
@pytest.mark.parametrize("wrong", [1.0, True])
def test_what_equals_a_whole_number_is_none_even_after_a_call_with_that_number(name, wrong):
    x, kernel = torch.randn(1, 2, 8, 8), torch.randn(2, 2, 3, 3)
    convolve(x, kernel, **{name: 1})  # plans are kept, and 1 == 1.0 == True
    with pytest.raises(TypeError, match=f"{name} must be .* got {wrong}"):
        convolve(x, kernel, **{name: wrong})


@pytest.mark.parametrize("backend", ["auto", *NAMES])
def test_a_kernel_that_touches_nothing_but_padding(backend):
    # one output before the input begins; that of the second axis reads the input as ever
    x = torch.randn(2, 3, 1, 4, dtype=torch.float64, requires_grad=True)
    kernel = torch.randn(3, 1, 1, 3, dtype=torch.float64, requires_grad=True)
    stride = 1 if backend in ("direct", "mixed") else 3
    pairs = ((1, 0 if stride == 3 else -1), (1, 1))
    output = convolve(x, kernel, None, stride, pairs, 3, backend=backend)
    assert output.shape == (2, 3, 1, 2 if stride == 3 else 4)
    assert_close(output, torch.zeros_like(output), "convolution", scale=1.0)
    for gradient in torch.autograd.grad(output.square().sum() + output.sum(), (x, kernel)):
        assert_close(gradient, torch.zeros_like(gradient), "convolution", scale=1.0)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("axes", [2, 3])
def test_a_stride_with_one_output_in_half_precision(dtype, axes):
    # torch 2.14.1 gets this wrong on processors with AMX, where it is along the last axis
    for length in (3, 5):
        x = torch.randn(2, 3, *[9] * (axes - 1), length).to(dtype)
        kernel = torch.randn(4, 3, *[3] * axes).to(dtype)
        pairs = ((1, 1),) * (axes - 1) + ((0, 0),)
        expected = reference(x.double(), kernel.double(), None, 3, pairs, 1)
        assert_close(convolve(x, kernel, stride=3, padding=pairs), expected, "convolution", dtype)


def test_a_stride_with_one_output_is_none():
    problem = Problem(1, 1, 1, 1, (9, 5, 8), (3, 3, 8), ((1, 1), (0, 2), (1, 0)), (3, 5, 2), torch.float32)
    same = problem.without_idle_strides()
    assert (same.padding, same.stride) == (((1, 1), (0, -2), (1, -1)), (3, 1, 1))
    assert same.output_spatial == problem.output_spatial == (3, 1, 1)

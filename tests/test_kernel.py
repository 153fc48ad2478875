import copy
import dataclasses

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.oracles import official_kernel, paper_listing
from tests.tolerances import assert_close

from torchdcls import Interpolation, dense_kernel, reference_kernel
from torchdcls.interpolation import INTERPOLATIONS, bilinear, find_interpolation

NAMES = [i.name for i in INTERPOLATIONS]


def elements(lead, count, axes, interpolation="gauss", dtype=torch.float64, spread=2.0, grad=False):
    """Random weight, position and sigma of ``count`` elements."""
    interpolation = find_interpolation(interpolation)
    weight = torch.randn(*lead, count, dtype=torch.float64).to(dtype)
    position = (torch.randn(axes, *lead, count, dtype=torch.float64) * spread).to(dtype)
    sigma = torch.randn(axes, *lead, count, dtype=torch.float64).to(dtype) if interpolation.has_width else None
    if grad:
        for tensor in (weight, position, sigma):
            if tensor is not None:
                tensor.requires_grad_()
    return weight, position, sigma


sizes = st.lists(st.integers(1, 7), min_size=1, max_size=4).map(tuple)
leads = st.lists(st.integers(1, 3), max_size=3).map(tuple)


@given(sizes, leads, st.integers(1, 5), st.sampled_from(NAMES), st.integers(0, 9), st.data())
def test_equals_the_reference(size, lead, count, interpolation, seed, data):
    dtype = data.draw(st.sampled_from([torch.float64, torch.float32, torch.float16, torch.bfloat16]))
    torch.manual_seed(seed)
    weight, position, sigma = elements(lead, count, len(size), interpolation, dtype)
    kernel = dense_kernel(weight, position, sigma, size, interpolation)
    assert kernel.dtype == dtype
    exact = [None if t is None else t.double() for t in (weight, position, sigma)]
    expected = reference_kernel(*exact, size, interpolation)
    assert kernel.shape == (*lead, *size) == expected.shape
    # Absolute where the window catches next to nothing of the elements: the sum is what cancels.
    scale = max(expected.norm().item(), 1e-3 * weight.double().norm().item())
    error = (kernel.double() - expected).norm().item() / scale
    assert error <= {torch.float64: 1e-12, torch.float32: 2e-5, torch.float16: 2e-3, torch.bfloat16: 1e-2}[dtype]


@pytest.mark.parametrize("interpolation", NAMES)
@pytest.mark.parametrize("axes", [1, 2, 3, 4])
def test_gradients_equal_the_references(interpolation, axes):
    size = (5, 4, 3, 2)[:axes]
    tensors = elements((2, 2), 3, axes, interpolation, grad=True)
    inputs = [t for t in tensors if t is not None]
    direction = torch.randn(2, 2, *size, dtype=torch.float64)
    fast = torch.autograd.grad(dense_kernel(*tensors, size, interpolation), inputs, direction)
    slow = torch.autograd.grad(reference_kernel(*tensors, size, interpolation), inputs, direction)
    for a, b in zip(fast, slow, strict=True):
        assert_close(a, b, "gradient")


@pytest.mark.parametrize("interpolation", NAMES)
@pytest.mark.parametrize("size", [(7,), (5, 4), (3, 4, 2)], ids=str)
def test_gradcheck(interpolation, size):
    tensors = elements((2,), 2, len(size), interpolation, spread=0.7, grad=True)
    inputs = [t for t in tensors if t is not None]

    def kernel(weight, position, sigma=None):
        return dense_kernel(weight, position, sigma, size, interpolation)

    assert torch.autograd.gradcheck(kernel, inputs)
    assert torch.autograd.gradgradcheck(kernel, inputs)


@pytest.mark.parametrize("interpolation", ["gauss", "triangle"])
@pytest.mark.parametrize("size", [(7, 7), (8, 8)], ids=str)
def test_equals_the_papers_listing_on_square_kernels(interpolation, size):
    weight, position, sigma = elements((4, 3), 5, 2, interpolation)
    expected = paper_listing(weight, position.flip(0), sigma.flip(0), size, interpolation)
    assert_close(dense_kernel(weight, position, sigma, size, interpolation), expected, "kernel")


OFFICIAL = {
    "v0": bilinear,
    "v1": dataclasses.replace(bilinear, name="v1", normalized=True),
    "max": "triangle",
    "gauss": "gauss",
}


@pytest.mark.parametrize("version", OFFICIAL)
@pytest.mark.parametrize("size", [(9,), (7, 7), (5, 5, 5)], ids=str)
def test_equals_the_official_package(version, size):
    interpolation = find_interpolation(OFFICIAL[version])
    weight, position, sigma = elements((4, 3), 5, len(size), interpolation, torch.float32, grad=True)
    with torch.no_grad():
        # On a tap v0 takes the derivative to the right, as we do, and the others take 0.
        edge = 0 if version == "v0" else 1e-3
        position.clamp_(-(size[0] // 2) + edge, size[0] // 2 - edge)
    unused = torch.zeros_like(position, requires_grad=True)
    inputs = [weight, position] + ([sigma] if interpolation.has_width else [])
    ours = dense_kernel(weight, position, sigma, size, interpolation)
    theirs = official_kernel(weight, position, unused if sigma is None else sigma, size, version)
    assert_close(ours, theirs, "kernel")
    direction = torch.randn_like(ours)
    for a, b in zip(
        torch.autograd.grad(ours, inputs, direction),
        torch.autograd.grad(theirs, inputs, direction),
        strict=True,
    ):
        assert_close(a, b, "gradient")


@pytest.mark.parametrize("interpolation", ["bilinear", "sinc"])
@given(st.integers(0, 9))
def test_whole_positions_make_a_sparse_kernel(interpolation, seed):
    torch.manual_seed(seed)
    weight = torch.randn(3, 4, dtype=torch.float64)
    position = torch.stack([torch.randint(-3, 4, (3, 4)), torch.randint(-2, 2, (3, 4))]).double()
    expected = torch.zeros(3, 7, 4, dtype=torch.float64)
    for lead in range(3):
        for k in range(4):
            row, column = (position[:, lead, k] + torch.tensor([3, 2])).long()
            expected[lead, row, column] += weight[lead, k]
    assert_close(dense_kernel(weight, position, None, (7, 4), interpolation), expected, "kernel")


@pytest.mark.parametrize("interpolation", [i for i in NAMES if i != "sinc"])
def test_mass_is_conserved_on_the_grid(interpolation):
    weight, position, sigma = elements((6,), 5, 2, interpolation)
    position = position.clamp(-4, 4)
    total = dense_kernel(weight, position, sigma, (9, 9), interpolation).sum((-1, -2))
    # 1e-7 is the paper's ϵ, and what it takes from the mass at the narrowest width
    torch.testing.assert_close(total, weight.sum(-1), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("interpolation", NAMES)
def test_moving_every_element_by_one_tap_moves_the_kernel(interpolation):
    weight, position, sigma = elements((3,), 4, 2, interpolation, spread=0.5)
    if sigma is not None:
        sigma = sigma * 0.05
    interpolation = dataclasses.replace(find_interpolation(interpolation), normalized=False)
    shift = torch.tensor([2.0, -1.0], dtype=torch.float64).view(2, 1, 1)
    still = dense_kernel(weight, position, sigma, (15, 15), interpolation)
    moved = dense_kernel(weight, position + shift, sigma, (15, 15), interpolation)
    assert_close(moved[:, 2:, :-1], still[:, :-2, 1:], "kernel")


@pytest.mark.parametrize("size", [(9, 4), (1, 9), (9, 1), (6, 6)], ids=str)
@pytest.mark.parametrize("interpolation", NAMES)
def test_position_zero_is_the_middle_tap_of_each_axis(size, interpolation):
    sigma = torch.zeros(2, 1) if find_interpolation(interpolation).has_width else None
    kernel = dense_kernel(torch.ones(1), torch.zeros(2, 1), sigma, size, interpolation)
    assert divmod(kernel.argmax().item(), size[1]) == (size[0] // 2, size[1] // 2)


def test_the_triangles_width_learns_from_where_it_starts():
    weight, position = torch.ones(1), torch.zeros(1, 1)
    target = dense_kernel(weight, position, torch.ones(1, 1), 9, "triangle")
    sigma = torch.zeros(1, 1, requires_grad=True)
    optimizer = torch.optim.SGD([sigma], lr=0.5)
    for _ in range(200):
        optimizer.zero_grad()
        (dense_kernel(weight, position, sigma, 9, "triangle") - target).square().sum().backward()
        optimizer.step()
    assert sigma.item() == pytest.approx(1.0, abs=0.05)


def _hat(x, width):
    return torch.exp(-x.abs() / width)


def test_an_interpolation_of_the_users_own():
    mine = Interpolation("laplace", _hat, minimum_width=0.3, initial_sigma=0.2)
    tensors = elements((2, 3), 4, 3, mine, grad=True)
    kernel = dense_kernel(*tensors, (3, 4, 5), mine)
    assert_close(kernel, reference_kernel(*tensors, (3, 4, 5), mine), "kernel")
    kernel.sum().backward()
    assert all(t.grad.abs().sum() > 0 for t in tensors)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_rounded_only_once(dtype):
    tensors = [t.to(dtype) for t in elements((8, 8), 6, 2)]
    exact = dense_kernel(*(t.double() for t in tensors), (15, 15))
    assert torch.equal(
        dense_kernel(*tensors, (15, 15)), dense_kernel(*(t.float() for t in tensors), (15, 15)).to(dtype)
    )
    assert_close(dense_kernel(*tensors, (15, 15)), exact, "kernel")


def test_autocast_changes_nothing():
    tensors = elements((8, 8), 6, 2, dtype=torch.float32)
    plain = dense_kernel(*tensors, (15, 15))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        under = dense_kernel(*tensors, (15, 15))
    assert under.dtype == torch.float32
    assert torch.equal(under, plain)


@pytest.mark.parametrize("interpolation", NAMES)
@pytest.mark.parametrize("axes", [1, 2, 3])
def test_compiles_whole(interpolation, axes):
    torch.compiler.reset()
    tensors = elements((2, 3), 4, axes, interpolation, torch.float32, grad=True)
    inputs = [t for t in tensors if t is not None]
    size = (5, 6, 7)[:axes]
    compiled = torch.compile(dense_kernel, fullgraph=True, backend="aot_eager")
    kernel, expected = compiled(*tensors, size, interpolation), dense_kernel(*tensors, size, interpolation)
    assert_close(kernel, expected, "kernel")
    direction = torch.randn_like(kernel)
    for a, b in zip(
        torch.autograd.grad(kernel, inputs, direction),
        torch.autograd.grad(expected, inputs, direction),
        strict=True,
    ):
        assert_close(a, b, "gradient")


def test_compiles_with_inductor():
    torch.compiler.reset()
    tensors = elements((2, 3), 4, 2, dtype=torch.float32)
    compiled = torch.compile(dense_kernel, fullgraph=True)
    assert_close(compiled(*tensors, (7, 5)), dense_kernel(*tensors, (7, 5)), "kernel")


def test_runs_on_the_meta_device():
    tensors = [t.to("meta") for t in elements((2, 3), 4, 2)]
    assert dense_kernel(*tensors, (7, 5)).shape == (2, 3, 7, 5)


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")  # torch's own forward mode uses it
def test_function_transforms():
    weight, position, sigma = elements((2, 3), 4, 2)

    def mass(position):
        return dense_kernel(weight, position, sigma, (7, 5)).square().sum()

    gradient = torch.func.grad(mass)(position)
    leaf = position.clone().requires_grad_()
    mass(leaf).backward()
    assert_close(gradient, leaf.grad, "gradient")
    batch = torch.stack([position, position + 1])
    kernels = torch.func.vmap(lambda p: dense_kernel(weight, p, sigma, (7, 5)))(batch)
    assert_close(kernels[1], dense_kernel(weight, position + 1, sigma, (7, 5)), "kernel")
    tangent = torch.func.jvp(mass, (position,), (torch.ones_like(position),))[1]
    assert_close(tangent, gradient.sum(), "gradient")


def test_inputs_are_left_alone():
    tensors = elements((2, 3), 4, 2)
    before = copy.deepcopy(tensors)
    dense_kernel(*tensors, (7, 5))
    assert all(torch.equal(a, b) for a, b in zip(tensors, before, strict=True))


@pytest.mark.parametrize(("size", "limit"), [((23, 23), 46 * 26), ((7, 9, 11), (7 * 9 + 11) * 26)], ids=str)
def test_no_tensor_of_elements_times_taps_is_made(size, limit):
    largest = 0

    class Watch(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            nonlocal largest
            result = function(*args, **(kwargs or {}))
            for tensor in result if isinstance(result, tuple | list) else [result]:
                if isinstance(tensor, torch.Tensor):
                    largest = max(largest, tensor.numel())
            return result

    weight, position, sigma = elements((1, 1), 26, len(size), grad=True)
    with Watch():
        dense_kernel(weight, position, sigma, size).sum().backward()
    assert 0 < largest <= limit


def test_one_size_is_that_of_every_axis():
    weight, position = torch.randn(4), torch.randn(2, 4)
    for function in (dense_kernel, reference_kernel):
        kernel = function(weight, position, None, 5, "bilinear")
        assert torch.equal(kernel, function(weight, position, None, (5, 5), "bilinear"))

import copy

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.oracles import slow_kernel
from tests.tolerances import assert_close
from torch import nn

import torchdcls
from torchdcls import Conv1d, Conv2d, Conv3d, Dcls1d, Dcls2d, Dcls3d
from torchdcls.interpolation import INTERPOLATIONS

DCLS = {1: Dcls1d, 2: Dcls2d, 3: Dcls3d}
FAST = {1: Conv1d, 2: Conv2d, 3: Conv3d}
TORCH = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}
NAMES = [i.name for i in INTERPOLATIONS]


@st.composite
def problems(draw):
    """A layer's arguments and an input that its kernel fits in."""
    axes = draw(st.integers(1, 3))
    groups = draw(st.integers(1, 3))
    size = draw(st.tuples(*[st.integers(1, 6)] * axes))
    padding_mode = draw(st.sampled_from(["zeros", "reflect", "replicate", "circular"]))
    pads = st.integers(0, 3)
    stride = draw(st.one_of(st.integers(1, 3), st.tuples(*[st.integers(1, 3)] * axes)))
    padding = draw(st.one_of(pads, st.just("valid"), st.tuples(*[pads] * axes)))
    if draw(st.booleans()):
        stride, padding = 1, "same"
    dense_axes = draw(st.lists(st.integers(0, axes - 1), max_size=axes - 1, unique=True))
    spatial = draw(st.tuples(*[st.integers(6, 9)] * axes))
    batch = draw(st.sampled_from([(), (1,), (3,)]))
    return {
        "in_channels": groups * draw(st.integers(1, 2)),
        "out_channels": groups * draw(st.integers(1, 2)),
        "kernel_count": draw(st.integers(1, 4)),
        "dilated_kernel_size": size,
        "stride": stride,
        "padding": padding,
        "groups": groups,
        "bias": draw(st.booleans()),
        "padding_mode": padding_mode,
        "interpolation": draw(st.sampled_from(NAMES)),
        "dense_axes": tuple(dense_axes),
    }, (*batch, draw(st.just(None)), *spatial)


def make(arguments, shape, dtype=torch.float64):
    torch.manual_seed(0)
    axes = len(arguments["dilated_kernel_size"])
    layer = DCLS[axes](**arguments, dtype=dtype)
    x = torch.randn([arguments["in_channels"] if n is None else n for n in shape], dtype=dtype)
    return layer, x


def torch_layer(layer):
    """torch's own convolution with the kernel of a Dcls layer."""
    axes = layer.axes
    conv = TORCH[axes](
        layer.in_channels,
        layer.out_channels,
        layer.dilated_kernel_size,
        stride=layer.stride,
        padding=layer.padding,
        groups=layer.groups,
        bias=layer.bias is not None,
        padding_mode=layer.padding_mode,
        dtype=layer.weight.dtype,
    )
    conv.weight = nn.Parameter(slow_kernel(layer).to(layer.weight.dtype))
    conv.bias = layer.bias
    return conv


@given(problems())
def test_equals_torchs_convolution_with_the_reference_kernel(problem):
    layer, x = make(*problem)
    expected_layer = torch_layer(layer)
    try:
        expected = expected_layer(x)
    except RuntimeError:  # padding that torch refuses for this input, or a kernel that does not fit in
        with pytest.raises((ValueError, RuntimeError)):
            layer(x)
        return
    assert_close(layer(x), expected, "convolution")
    assert_close(layer.to_conv()(x), expected, "convolution")


@pytest.mark.parametrize("interpolation", NAMES)
@pytest.mark.parametrize("axes", [1, 2, 3])
def test_gradcheck(axes, interpolation):
    size = (5, 4, 3)[:axes]
    layer = DCLS[axes](2, 2, 2, size, padding="same", interpolation=interpolation, dtype=torch.float64)
    x = torch.randn(2, 2, *(4, 3, 3)[:axes], dtype=torch.float64, requires_grad=True)
    names, parameters = zip(*layer.named_parameters(), strict=True)
    if interpolation == "triangle":  # at sigma = 0 the derivative to the right is taken, not the mean of both sides
        nn.init.constant_(layer.sigma, 0.3)

    def run(x, *values):
        return torch.func.functional_call(layer, dict(zip(names, values, strict=True)), (x,))

    assert torch.autograd.gradcheck(run, (x, *parameters))


def test_starts_as_the_paper_says():
    layer = Dcls2d(64, 64, 34, 17, groups=64, interpolation="bilinear")
    assert layer.sigma is None
    assert layer.position.std().item() == pytest.approx(0.5, rel=0.05)
    assert layer.position.mean().item() == pytest.approx(0, abs=0.02)
    assert (Dcls2d(4, 4, 5, 9).sigma == 0.23).all()
    assert (Dcls2d(4, 4, 5, 9, interpolation="triangle").sigma == 0).all()
    bound = 1 / 34**0.5
    assert 0.95 * bound < layer.weight.abs().max().item() <= bound
    assert 0.9 * bound < layer.bias.abs().max().item() <= bound
    before = copy.deepcopy(layer.state_dict())
    layer.reset_parameters()
    assert not any(torch.equal(before[name], value) for name, value in layer.state_dict().items())


@pytest.mark.parametrize(("size", "low", "high"), [(7, -3, 3), (8, -4, 3), (1, 0, 0)])
def test_positions_are_clamped_to_the_taps(size, low, high):
    layer = Dcls2d(4, 4, 6, (size, 5), interpolation="bilinear")
    nn.init.normal_(layer.position, std=50)
    layer.clamp_positions_()
    assert (layer.position[0].min().item(), layer.position[0].max().item()) == (low, high)
    assert (layer.position[1].min().item(), layer.position[1].max().item()) == (-2, 2)
    # On the edge nothing is lost, so the mass of every kernel is that of its elements.
    torch.testing.assert_close(layer.dense_kernel().sum((-1, -2)), layer.weight.sum(-1))


def test_positions_are_left_free_where_the_interpolation_allows():
    layer = Dcls2d(4, 4, 6, 5, interpolation="gauss")
    nn.init.normal_(layer.position, std=50)
    before = layer.position.clone()
    layer.clamp_positions_()
    assert torch.equal(layer.position, before)


def test_translation_equivariance():
    layer = Dcls2d(3, 3, 5, 9, padding_mode="circular", padding=4, dtype=torch.float64)
    x = torch.randn(1, 3, 12, 12, dtype=torch.float64)
    assert_close(layer(x.roll((3, -2), (2, 3))), layer(x).roll((3, -2), (2, 3)), "convolution")


def test_nothing_goes_stale():
    layer = Dcls2d(2, 2, 3, 5, padding=2)
    x = torch.randn(1, 2, 6, 6)
    before = layer(x)
    layer.position.data.add_(0.5)
    moved = layer(x)
    assert not torch.allclose(before, moved)
    double = layer.double()
    assert double(x.double()).dtype == torch.float64
    assert_close(double(x.double()), moved.double(), "convolution", torch.float32)


def test_parameters_can_be_parametrized():
    class Doubled(nn.Module):
        def forward(self, position):
            return position * 2

    layer = Dcls2d(2, 2, 3, 7, padding=3)
    x = torch.randn(1, 2, 6, 6)
    twin = copy.deepcopy(layer)
    twin.position.data.mul_(2)
    nn.utils.parametrize.register_parametrization(layer, "position", Doubled())
    assert_close(layer(x), twin(x), "convolution")
    layer(x).sum().backward()
    assert layer.parametrizations.position.original.grad.abs().sum() > 0


@pytest.mark.parametrize("axes", [1, 2, 3])
def test_to_conv_is_torchs_layer_with_the_same_function(axes):
    layer = DCLS[axes](4, 6, 3, 5, stride=2, padding=1, groups=2, bias=False, padding_mode="circular").eval()
    layer.weight.requires_grad_(False)
    conv = layer.to_conv()
    assert isinstance(conv, TORCH[axes])
    assert type(conv) is FAST[axes]
    assert not conv.training
    assert not conv.weight.requires_grad
    assert conv.bias is None
    x = torch.randn(2, 4, *[7] * axes)
    assert_close(conv(x), layer(x), "convolution")
    plain = TORCH[axes](4, 6, 5, stride=2, padding=1, groups=2, bias=False, padding_mode="circular")
    plain.load_state_dict(conv.state_dict())
    assert_close(conv(x), plain(x), "convolution")


@given(
    st.integers(1, 3),
    st.integers(1, 8),
    st.integers(1, 9),
    st.integers(1, 3),
    st.integers(1, 2),
    st.one_of(st.integers(0, 4), st.sampled_from(["same", "valid"])),
)
def test_from_conv_keeps_the_output_shape(axes, old, new, stride, dilation, padding):
    stride = 1 if padding == "same" else stride
    conv = TORCH[axes](2, 4, old, stride=stride, dilation=dilation, padding=padding, groups=2)
    x = torch.randn(1, 2, *[17] * axes)
    layer = DCLS[axes].from_conv(conv, 3, new)
    assert torch.equal(layer.bias, conv.bias)
    assert layer(x).shape == conv(x).shape == layer.to_conv()(x).shape


@pytest.mark.parametrize("old", [3, 4])
@pytest.mark.parametrize("new", [2, 3, 6, 9])
def test_from_conv_keeps_the_middle_where_it_was(old, new):
    conv = nn.Conv1d(1, 1, old, stride=2, padding=1, bias=False)
    nn.init.zeros_(conv.weight)
    conv.weight.data[..., old // 2] = 1
    layer = Dcls1d.from_conv(conv, 1, new, interpolation="bilinear")
    nn.init.zeros_(layer.position)
    nn.init.ones_(layer.weight)
    x = torch.randn(1, 1, 16)
    assert_close(layer(x), conv(x), "convolution")


def test_from_conv_keeps_device_dtype_mode_and_gradients():
    conv = nn.Conv2d(4, 4, 3, padding=1, groups=4, dtype=torch.float64).eval()
    conv.bias.requires_grad_(False)
    layer = Dcls2d.from_conv(conv, 5, 7, interpolation="triangle")
    assert layer.weight.dtype == torch.float64
    assert not layer.training
    assert not layer.bias.requires_grad
    assert layer.interpolation.name == "triangle"
    assert Dcls2d.from_conv(conv.to("meta"), 5, 7).weight.is_meta
    conv = Conv2d(8, 4, 3, stride=(2, 1), padding=1, groups=4, padding_mode="circular", backend="spectral")
    layer = Dcls2d.from_conv(conv, 5, 7)
    assert (layer.padding_mode, layer.stride, layer.groups, layer.backend) == ("circular", (2, 1), 4, "spectral")
    assert "backend=spectral" in repr(conv)
    assert "backend" not in repr(Conv2d(8, 4, 3)) + repr(Dcls2d(8, 4, 3, 5))


class Doubled(nn.Conv2d):
    def _conv_forward(self, *arguments):
        return 2 * super()._conv_forward(*arguments)


def test_from_conv_refuses_what_computes_something_else():
    with pytest.raises(TypeError, match="got a Doubled with a forward of its own"):
        Dcls2d.from_conv(Doubled(4, 4, 3), 2, 5)


@pytest.mark.parametrize("interpolation", [i.name for i in INTERPOLATIONS])
def test_no_element_of_a_flat_window_starts_outside_of_it(interpolation):
    layer = Dcls2d(64, 64, 26, (1, 41), groups=64, interpolation=interpolation)
    assert layer.position[0].abs().max() == 0
    layer.dense_kernel().square().sum().backward()
    assert (layer.weight.grad != 0).float().mean() > 0.999


def test_complex_convolutions_are_torchs():
    conv = Conv2d(4, 4, 3, dtype=torch.complex64)
    x = torch.randn(1, 4, 8, 8, dtype=torch.complex64)
    assert torch.equal(conv(x), nn.Conv2d.forward(conv, x))


def test_repr_says_what_a_reader_needs():
    assert repr(Dcls2d(4, 8, 5, (9, 3))) == (
        "Dcls2d(4, 8, kernel_count=5, dilated_kernel_size=(9, 3), interpolation=gauss)"
    )
    layer = Dcls3d(4, 8, 5, 3, 2, "valid", 2, False, "circular", "bilinear", (0,))
    assert repr(layer) == (
        "Dcls3d(4, 8, kernel_count=5, dilated_kernel_size=(3, 3, 3), stride=(2, 2, 2), padding=valid, groups=2, "
        "padding_mode=circular, dense_axes=(0,), bias=False, interpolation=bilinear)"
    )


@pytest.mark.parametrize("axes", [1, 2, 3])
def test_fast_conv_is_a_drop_in(axes):
    torch.manual_seed(0)
    theirs = TORCH[axes](4, 6, 3, stride=2, padding=1, groups=2, padding_mode="reflect", dtype=torch.float64)
    torch.manual_seed(0)
    ours = FAST[axes](4, 6, 3, stride=2, padding=1, groups=2, padding_mode="reflect", dtype=torch.float64)
    assert list(ours.state_dict()) == list(theirs.state_dict())
    assert repr(ours) == repr(theirs)
    x = torch.randn(2, 4, *[7] * axes, dtype=torch.float64)
    assert_close(ours(x), theirs(x), "convolution")
    dilated = FAST[axes](4, 6, 3, dilation=2, dtype=torch.float64)
    assert_close(dilated(x), TORCH[axes].forward(dilated, x), "convolution")


def test_public_names():
    for name in torchdcls.__all__:
        assert getattr(torchdcls, name) is not None

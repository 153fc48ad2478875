import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.tolerances import assert_close, relative_error
from torch import nn

from torchdcls import Dcls2d, reference_kernel, share_positions, to_dcls
from torchdcls.fitting import fit_elements_
from torchdcls.interpolation import INTERPOLATIONS

EXACT = ["bilinear", "triangle", "sinc"]  # whose elements can stand for one tap alone


def smooth_kernels(count, size=7):
    """Kernels as trained networks have them: some bells, some noise."""
    tap = torch.arange(size) - size // 2
    kernels = 0.03 * torch.randn(count, 1, size, size)
    for _ in range(3):
        centre, width = 1.5 * torch.randn(2, count, 1), 0.7 + torch.rand(count, 1)
        bells = (torch.exp(-((tap - c).square()) / (2 * width**2)) for c in centre)
        kernels[:, 0] += torch.randn(count, 1, 1) * torch.einsum("ni,nj->nij", *bells)
    return kernels


def convolutions(layers, channels=6, size=7):
    made = [nn.Conv2d(channels, channels, size, padding=size // 2, groups=channels) for _ in range(layers)]
    for conv in made:
        conv.weight.data = smooth_kernels(channels, size)
    return made


def fitted(convs, count, size, interpolation):
    layers = [Dcls2d.from_conv(conv, count, size, interpolation) for conv in convs]
    share_positions(layers)
    return layers, fit_elements_(layers, convs)


@pytest.mark.parametrize("interpolation", EXACT)
@pytest.mark.parametrize("layers", [1, 3])
@pytest.mark.parametrize("count", [49, 60])
def test_exact_where_the_count_allows(interpolation, layers, count):
    convs = convolutions(layers)
    made, errors = fitted(convs, count, 23, interpolation)
    assert max(errors) < 1e-6
    x = torch.randn(2, 6, 14, 14)
    for conv, layer in zip(convs, made, strict=True):
        assert_close(layer(x), conv(x), "convolution")


def test_gauss_is_exact_with_a_ring_more_or_in_a_window_of_the_same_size():
    convs = convolutions(2)
    x = torch.randn(2, 6, 14, 14)
    for count, size in ((81, 23), (49, 7)):
        made, errors = fitted(convs, count, size, "gauss")
        assert max(errors) < 2e-6
        assert_close(made[0](x), convs[0](x), "convolution")
    _, errors = fitted(convs, 49, 23, "gauss")
    assert 1e-5 < max(errors) < 2e-3  # the narrowest element gives its neighbours a thousandth


@given(
    st.tuples(st.integers(1, 5), st.integers(1, 4)),
    st.tuples(st.integers(1, 2), st.integers(1, 3)),
    st.tuples(st.integers(0, 6), st.integers(0, 6)),
    st.sampled_from(EXACT),
)
@settings(max_examples=40)
def test_any_size_and_dilation_in_any_window(size, dilation, more, interpolation):
    torch.manual_seed(0)
    conv = nn.Conv2d(4, 6, size, dilation=dilation, groups=2)
    window = tuple(d * (s - 1) + 1 + extra for s, d, extra in zip(size, dilation, more, strict=True))
    layer = Dcls2d.from_conv(conv, size[0] * size[1], window, interpolation)
    (error,) = fit_elements_([layer], [conv])
    assert error < 1e-6
    x = torch.randn(1, 4, 16, 16)
    assert_close(layer(x), conv(x), "convolution")


def test_taps_outside_of_a_smaller_window_are_lost_and_reported():
    conv = convolutions(1)[0]
    layer = Dcls2d.from_conv(conv, 25, 5, "bilinear")
    (error,) = fit_elements_([layer], [conv])
    inner = conv.weight[..., 1:6, 1:6]
    assert_close(layer.dense_kernel(), inner, "kernel")
    assert error == pytest.approx(
        ((conv.weight.norm() ** 2 - inner.norm() ** 2).sqrt() / conv.weight.norm()).item(), 1e-4
    )


@pytest.mark.parametrize("interpolation", [i.name for i in INTERPOLATIONS])
def test_with_fewer_elements_than_taps_it_beats_the_best_taps(interpolation):
    convs = convolutions(3, channels=8)
    count = 26  # of 49 taps
    _, errors = fitted(convs, count, 11, interpolation)
    energy = torch.stack([conv.weight.detach() for conv in convs]).square().flatten(2)
    kept = energy.sum(0).topk(count, dim=1).indices
    for error, own in zip(errors, energy, strict=True):
        missed = 1 - own.gather(1, kept).sum() / own.sum()
        assert error < missed.sqrt()


def test_fitting_finds_elements_that_made_a_kernel():
    torch.manual_seed(1)
    hidden = Dcls2d(4, 4, 3, 11, padding=5, groups=4)
    hidden.position.data = 2 * torch.randn(2, 4, 1, 3)
    hidden.weight.data = 1 + torch.rand(4, 1, 3)
    conv = hidden.to_conv()
    (error,) = fit_elements_([Dcls2d.from_conv(conv, 6, 11)], [conv])
    assert error < 0.02


def test_weights_stay_moderate():
    convs = convolutions(3, channels=16)
    layers, _ = fitted(convs, 26, 23, "gauss")
    largest = max(conv.weight.abs().max() for conv in convs)
    assert max(layer.weight.abs().max() for layer in layers) < 15 * largest


@pytest.mark.parametrize("interpolation", ["gauss", "bilinear"])
def test_dense_axes_are_fitted_each_on_its_own(interpolation):
    conv = nn.Conv2d(3, 4, (3, 9), padding=(1, 4))
    layer = Dcls2d.from_conv(conv, 9, (3, 9), interpolation, dense_axes=(0,))
    (error,) = fit_elements_([layer], [conv])
    assert error < 1e-6
    assert_close(layer.dense_kernel(), conv.weight, "kernel")


def test_the_error_reported_is_the_error_made():
    convs = convolutions(2)
    layers, errors = fitted(convs, 12, 9, "gauss")
    for conv, layer, error in zip(convs, layers, errors, strict=True):
        target = torch.zeros(6, 1, 9, 9)
        target[..., 1:8, 1:8] = conv.weight.detach()
        made = reference_kernel(layer.weight.double(), layer.position.double(), layer.sigma.double(), 9)
        assert relative_error(made, target) == pytest.approx(error, rel=1e-3)


def test_kernels_of_zeros():
    conv = nn.Conv2d(2, 2, 3, groups=2)
    nn.init.zeros_(conv.weight)
    layer = Dcls2d.from_conv(conv, 4, 5)
    assert fit_elements_([layer], [conv]) == [0]
    assert layer.dense_kernel().abs().max() == 0


def test_half_precision_kernels():
    conv = convolutions(1)[0].to(torch.bfloat16)
    layer = Dcls2d.from_conv(conv, 49, 9, "bilinear")
    (error,) = fit_elements_([layer], [conv])
    assert error < 1e-6


def test_a_network_keeps_what_it_computes():
    model = nn.Sequential(
        *(nn.Sequential(conv, nn.Conv2d(6, 6, 1), nn.GELU()) for conv in convolutions(2)), nn.Flatten()
    )
    x = torch.randn(2, 6, 12, 12)
    expected = model(x)
    report = to_dcls(model, 49, 17, "triangle", start="fit")
    assert len(report) == 2
    assert max(row.error for row in report) < 1e-6
    assert_close(model(x), expected, "convolution")


def test_nothing_to_fit_on_the_meta_device():
    with torch.device("meta"):
        model = nn.Sequential(nn.Conv2d(4, 4, 3, groups=4))
    with pytest.raises(ValueError, match="start='fit' needs trained kernels to fit, got layers on the meta device"):
        to_dcls(model, 3, 5, start="fit")

"""Bad input, in one table: what is called, what is raised, what the message says."""

import pytest
import torch
from torch import nn

from torchdcls import Conv2d, Dcls1d, Dcls2d, Dcls3d, convolve, dense_kernel

W, P, S = torch.randn(2, 3, 4), torch.randn(2, 2, 3, 4), torch.rand(2, 2, 3, 4)
NAN = torch.full_like(P, float("nan"))
X, K = torch.randn(1, 4, 8, 8), torch.randn(6, 2, 3, 3)


def layer(in_channels=4, out_channels=6, kernel_count=3, dilated_kernel_size=5, **arguments):
    return lambda: Dcls2d(in_channels, out_channels, kernel_count, dilated_kernel_size, **arguments)


TABLE = {
    # layers: sizes, counts, channels
    "groups-in": (layer(5, 6, groups=2), ValueError, "in_channels must be divisible by groups, got in_channels=5"),
    "groups-out": (layer(4, 5, groups=2), ValueError, "out_channels must be divisible by groups, got out_channels=5"),
    "groups-zero": (layer(groups=0), ValueError, "groups must be at least 1 .* got 0"),
    "channels-zero": (layer(0), ValueError, "in_channels must be at least 1 .* got 0"),
    "channels-float": (layer(4.0), TypeError, "in_channels must be an int .* got 4.0"),
    "count-zero": (layer(kernel_count=0), ValueError, "kernel_count must be at least 1 .* got 0"),
    "count-tuple": (layer(kernel_count=(3, 3)), ValueError, r"kernel_count must be an int .* got \(3, 3\)"),
    "size-zero": (
        layer(dilated_kernel_size=(23, 0)),
        ValueError,
        r"dilated_kernel_size must be at least 1 on every axis, got \(23, 0\)",
    ),
    "size-length": (layer(dilated_kernel_size=(5, 5, 5)), ValueError, r"tuple of 2 ints.*got \(5, 5, 5\)"),
    "size-float": (layer(dilated_kernel_size=(5.0, 5)), TypeError, r"dilated_kernel_size must be an int.*\(5.0, 5\)"),
    "size-bool": (layer(dilated_kernel_size=True), TypeError, "dilated_kernel_size must be an int .* got True"),
    "stride-zero": (layer(stride=0), ValueError, "stride must be at least 1 .* got 0"),
    "stride-length": (layer(stride=(1, 1, 1)), ValueError, r"stride must be .* 2 ints.*got \(1, 1, 1\)"),
    "padding-name": (layer(padding="full"), ValueError, "padding must be 'same', 'valid'.*got 'full'"),
    "padding-length": (layer(padding=(1, 1, 1)), ValueError, r"padding must be .* 2 entries.*got \(1, 1, 1\)"),
    "padding-float": (layer(padding=(1.5, 1)), TypeError, r"padding must have an int or a pair.*got \(1.5, 1\)"),
    "padding-triple": (layer(padding=((1, 1, 1), 1)), TypeError, "padding must have an int or a pair"),
    "padding-same-stride": (layer(padding="same", stride=2), ValueError, r"stride of 1 .* got \(2, 2\)"),
    "padding-mode": (layer(padding_mode="mirror"), ValueError, "padding_mode must be one of zeros, .* got 'mirror'"),
    "interpolation": (layer(interpolation="gaus"), ValueError, "interpolation must be one of bilinear.*got 'gaus'"),
    "interpolation-type": (layer(interpolation=torch.sinc), TypeError, "interpolation must be .* got builtin"),
    "dense-axes": (layer(dense_axes=(2,)), ValueError, r"dense_axes must be distinct axes from 0 to 1, got \(2,\)"),
    "dense-axes-twice": (layer(dense_axes=(0, 0)), ValueError, r"dense_axes must be distinct .*got \(0, 0\)"),
    "dense-axes-all": (layer(dense_axes=(0, 1)), ValueError, "dense_axes must leave at least one axis to learn"),
    "padding-none": (layer(padding=None), TypeError, "padding must be 'same', 'valid', an int or a tuple, got None"),
    "dense-axes-int": (layer(dense_axes=0), TypeError, "dense_axes must be a tuple of ints, got 0"),
    "dense-axes-float": (layer(dense_axes=(0.0,)), TypeError, r"dense_axes must be a tuple of ints, got \(0.0,\)"),
    "dtype-name": (layer(dtype="float32"), TypeError, "dtype must be a floating point dtype, got 'float32'"),
    "dtype": (layer(dtype=torch.int32), TypeError, "dtype must be a floating point dtype, got torch.int32"),
    "from-conv-axes": (
        lambda: Dcls1d.from_conv(nn.Conv2d(1, 1, 3), 2, 5),
        TypeError,
        "conv must be a torch.nn.Conv1d, got Conv2d",
    ),
    "from-conv-linear": (lambda: Dcls3d.from_conv(nn.Linear(1, 1), 2, 5), TypeError, "Conv3d, got Linear"),
    # dense_kernel
    "kernel-list": (lambda: dense_kernel([1.0], P, S, (5, 5)), TypeError, "weight must be a tensor, got list"),
    "position-none": (lambda: dense_kernel(W, None, S, (5, 5)), TypeError, "position must be a tensor, got NoneType"),
    "sigma-number": (lambda: dense_kernel(W, P, 0.2, (5, 5)), TypeError, "sigma must be a tensor, got float"),
    "kernel-size-none": (lambda: dense_kernel(W, P, S, None), TypeError, "size must be an int or a tuple of 2 ints"),
    "kernel-integer": (lambda: dense_kernel(W.int(), P, S, (5, 5)), TypeError, "weight must be a floating point"),
    "kernel-empty": (
        lambda: dense_kernel(W[..., :0], P[..., :0], S[..., :0], (5, 5)),
        ValueError,
        "weight must be .* at least one element",
    ),
    "kernel-scalar": (lambda: dense_kernel(W[0, 0, 0], P, S, (5, 5)), ValueError, r"weight must be .*got shape \(\)"),
    "position-shape": (
        lambda: dense_kernel(W, P[..., :3], S, (5, 5)),
        ValueError,
        r"position must have shape \(2, 2, 3, 4\).*got \(2, 2, 3, 3\)",
    ),
    "position-axes": (lambda: dense_kernel(W, P, S, (5, 5, 5)), ValueError, r"position must have shape \(3, 2, 3, 4\)"),
    "position-dtype": (
        lambda: dense_kernel(W, P.double(), S, (5, 5)),
        TypeError,
        "position must have the dtype of weight, torch.float32, got torch.float64",
    ),
    "position-finite": (lambda: dense_kernel(W, NAN, S, (5, 5)), ValueError, "position must be finite, got 48 values"),
    "sigma-finite": (lambda: dense_kernel(W, P, NAN, (5, 5)), ValueError, "sigma must be finite"),
    "sigma-shape": (lambda: dense_kernel(W, P, S[:1], (5, 5)), ValueError, "sigma must have shape"),
    "sigma-missing": (lambda: dense_kernel(W, P, None, (5, 5)), ValueError, "sigma must be given for the gauss"),
    "sigma-unused": (
        lambda: dense_kernel(W, P, S, (5, 5), "bilinear"),
        ValueError,
        "sigma must be None for the bilinear interpolation",
    ),
    "kernel-size": (lambda: dense_kernel(W, P, S, (5, -1)), ValueError, r"size must be at least 1 .* got \(5, -1\)"),
    # convolve
    "input-array": (lambda: convolve(X.numpy(), K, groups=2), TypeError, "input must be a tensor, got ndarray"),
    "bias-number": (lambda: convolve(X, K, 1.0, groups=2), TypeError, "bias must be a tensor, got float"),
    "bias-dtype": (
        lambda: convolve(X, K, torch.zeros(6).double(), groups=2),
        TypeError,
        "bias and kernel must have one dtype outside of autocast, got torch.float64 and torch.float32",
    ),
    "kernel-no-tap": (
        lambda: convolve(X, K[..., :0], groups=2),
        ValueError,
        r"kernel must have .* got shape \(6, 2, 3",
    ),
    "reflect-wide": (
        lambda: convolve(X, K, padding=(7, 8), groups=2, padding_mode="reflect"),
        ValueError,
        r"padding must be smaller than the input, \(8, 8\), with padding_mode='reflect', got \(\(7, 7\), \(8, 8\)\)",
    ),
    "circular-wide": (
        lambda: convolve(X, K, padding=((9, 0), 0), groups=2, padding_mode="circular"),
        ValueError,
        r"padding must be at most the input, \(8, 8\), with padding_mode='circular'",
    ),
    "replicate-nothing": (
        lambda: convolve(X[..., :0], K, padding=3, groups=2, padding_mode="replicate"),
        ValueError,
        r"padding must be at most the input, \(8, 0\)",
    ),
    "input-rank": (lambda: convolve(X[0, 0], K, groups=2), ValueError, r"input must be .*2 spatial axes.*\(8, 8\)"),
    "input-channels": (lambda: convolve(X[:, :3], K, groups=2), ValueError, r"4 channels, got shape \(1, 3, 8, 8\)"),
    "input-integer": (lambda: convolve(X.int(), K, groups=2), TypeError, "input must be a floating point tensor"),
    "input-dtype": (lambda: convolve(X.double(), K, groups=2), TypeError, "one dtype outside of autocast, got .*64"),
    "input-small": (
        lambda: convolve(X[..., :2], K, groups=2),
        ValueError,
        r"as large as the kernel, \(3, 3\), after padding, got \(8, 2\)",
    ),
    "kernel-rank": (lambda: convolve(X, K[0, 0], groups=2), ValueError, "kernel must be .* 1 to 3 axes"),
    "bias-shape": (lambda: convolve(X, K, torch.zeros(5), groups=2), ValueError, r"bias must have shape \(6,\), got"),
    "convolve-groups": (lambda: convolve(X, K, groups=4), ValueError, "outputs divisible by groups, got 6 and"),
    "convolve-mode": (lambda: convolve(X, K, groups=2, padding_mode=""), ValueError, "padding_mode must be one of"),
    "forward-list": (lambda: layer()()(X.tolist()), TypeError, "input must be a tensor, got list"),
    "forward-rank": (lambda: layer()()(X[0, 0]), ValueError, "input must be"),
    "forward-channels": (lambda: layer()()(X[:, :3]), ValueError, "input must have 4 channels"),
    "forward-conv": (lambda: Conv2d(4, 4, 3)(X[:, :3]), ValueError, "input must have 4 channels"),
}


@pytest.mark.parametrize(("call", "error", "message"), TABLE.values(), ids=TABLE)
def test_bad_input_is_refused_with_a_clear_sentence(call, error, message):
    with pytest.raises(error, match=message):
        call()


def test_positions_that_became_nan_are_found_at_the_next_forward():
    broken = layer()()
    broken.position.data[0, 0, 0, 0] = float("inf")
    with pytest.raises(ValueError, match="position must be finite, got 1 values"):
        broken(X)

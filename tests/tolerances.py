"""The one table of tolerances, used by every test: what is compared, in which dtype -> relative error."""

import torch

TOLERANCE = {
    ("kernel", torch.float64): 1e-12,
    ("kernel", torch.float32): 2e-5,  # a distance x = p - i is rounded to 1e-6 at the edge of a 51-tap window
    ("kernel", torch.float16): 2e-3,  # computed in float32, rounded once
    ("kernel", torch.bfloat16): 1e-2,
    ("convolution", torch.float64): 1e-10,
    ("convolution", torch.float32): 1e-5,
    ("convolution", torch.float16): 5e-3,
    ("convolution", torch.bfloat16): 4e-2,
    ("gradient", torch.float64): 1e-9,
    ("gradient", torch.float32): 1e-4,
}


def relative_error(actual, expected, scale=0.0):
    """The norm of the difference over the norm of what was expected, or over ``scale`` if that is larger.

    0 where both are all zero. A scale is for sums whose terms may cancel.
    """
    assert actual.shape == expected.shape, (actual.shape, expected.shape)
    actual, expected = actual.detach().double(), expected.detach().double()
    difference = (actual - expected).norm()
    return (difference / expected.norm().clamp_min(max(scale, 1e-30))).item() if difference else 0.0


def assert_close(actual, expected, quantity, dtype=None, scale=0.0):
    dtype = dtype or actual.dtype
    error = relative_error(actual, expected, scale)
    assert error <= TOLERANCE[quantity, dtype], f"{quantity} in {dtype} is off by {error:.2e}"

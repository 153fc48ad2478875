import pytest
import torch
import torch.nn.functional as F
from tests.tolerances import assert_close

from torchdcls import convolve


@pytest.mark.parametrize("axes", [1, 2, 3])
def test_pairs_pad_each_side_on_its_own_and_negative_amounts_cut(axes):
    function = (F.conv1d, F.conv2d, F.conv3d)[axes - 1]
    x = torch.randn(2, 4, *[9] * axes, dtype=torch.float64)
    kernel = torch.randn(6, 2, *[3] * axes, dtype=torch.float64)
    pairs = ((4, 1), (0, 2), (-2, 1))[:axes]
    flat = [amount for pair in reversed(pairs) for amount in pair]
    assert_close(
        convolve(x, kernel, padding=pairs, groups=2), function(F.pad(x, flat), kernel, groups=2), "convolution"
    )
    circular = convolve(x, kernel, padding=((2, 1),) * axes, groups=2, padding_mode="circular")
    assert_close(circular, function(F.pad(x, [2, 1] * axes, mode="circular"), kernel, groups=2), "convolution")


def test_spiking_padding_is_causal():
    x = torch.zeros(1, 1, 8)
    x[..., 3] = 1
    kernel = torch.arange(1.0, 5.0).view(1, 1, 4)
    assert convolve(x, kernel, padding=((3, 0),)).tolist() == [[[0, 0, 0, 4, 3, 2, 1, 0]]]

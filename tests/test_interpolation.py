import math
import pickle

import pytest
import torch
from tests.tolerances import assert_close

from torchdcls import Interpolation
from torchdcls.interpolation import INTERPOLATIONS, bilinear, find_interpolation, gauss, sinc, triangle

X = torch.linspace(-6, 6, 241, dtype=torch.float64)

# The design's table, written out once more and by other means than the library's.
FORMULAS = {
    "bilinear": lambda x, w: max(0.0, 1 - abs(x)),
    "triangle": lambda x, w: max(0.0, w - abs(x)),
    "gauss": lambda x, w: math.exp(-(x**2) / (2 * w**2)),
    "lorentz": lambda x, w: 1 / (1 + (x / w) ** 2),
    "hypergauss": lambda x, w: math.exp(-((x**2 / (2 * w**2)) ** 2)),
    "sinc": lambda x, w: math.sin(math.pi * x) / (math.pi * x) if x else 1.0,
}
COLUMNS = {  # minimum width, initial sigma, normalized, on grid
    "bilinear": (None, None, False, True),
    "triangle": (1.0, 0.0, True, False),
    "gauss": (0.27, 0.23, True, False),
    "lorentz": (0.27, 0.23, True, False),
    "hypergauss": (0.27, 0.23, True, False),
    "sinc": (None, None, False, True),
}


def test_every_interpolation_is_in_the_table():
    assert {i.name for i in INTERPOLATIONS} == set(FORMULAS) == set(COLUMNS)


@pytest.mark.parametrize("interpolation", INTERPOLATIONS, ids=lambda i: i.name)
def test_profile_and_columns(interpolation):
    columns = (
        interpolation.minimum_width,
        interpolation.initial_sigma,
        interpolation.normalized,
        interpolation.on_grid,
    )
    assert columns == COLUMNS[interpolation.name]
    for sigma in (-1.3, 0.0, 0.23, 4.0):
        width = interpolation.width(torch.tensor(sigma, dtype=torch.float64)) if interpolation.has_width else None
        if width is not None:
            assert width.item() == pytest.approx(interpolation.minimum_width + abs(sigma))
        formula = FORMULAS[interpolation.name]
        expected = torch.tensor([formula(x, width and width.item()) for x in X.tolist()], dtype=torch.float64)
        assert_close(interpolation.profile(X, width), expected, "kernel")


@pytest.mark.parametrize("interpolation", INTERPOLATIONS, ids=lambda i: i.name)
def test_profile_is_even_and_highest_in_the_middle(interpolation):
    width = interpolation.width(torch.tensor(0.4, dtype=torch.float64)) if interpolation.has_width else None
    profile = interpolation.profile(X, width)
    assert_close(profile.flip(0), profile, "kernel")
    assert profile.argmax() == len(X) // 2


@pytest.mark.parametrize(
    ("interpolation", "x", "slope"),
    [
        (bilinear, -1, 1),
        (bilinear, 0, -1),
        (bilinear, 1, 0),
        (triangle, -1, 1),
        (triangle, 0, -1),
        (triangle, 1, 0),
    ],
    ids=lambda value: getattr(value, "name", value),
)
def test_kinks_take_the_derivative_to_the_right(interpolation, x, slope):
    # so that mass is conserved and an element that lies on a tap, or at the border, can leave it
    x = torch.tensor(float(x), requires_grad=True)
    interpolation.profile(x, torch.tensor(1.0)).backward()
    assert x.grad.item() == slope


@pytest.mark.parametrize("interpolation", [i for i in INTERPOLATIONS if i.has_width], ids=lambda i: i.name)
def test_width_has_gradient_one_where_sigma_is_zero(interpolation):
    sigma = torch.tensor([-2.0, 0.0, 2.0], requires_grad=True)
    interpolation.width(sigma).sum().backward()
    assert sigma.grad.tolist() == [-1, 1, 1]


def test_far_away_gauss_is_zero_and_its_gradient_finite():
    x = torch.tensor([30.0, 1e4, 1e18], requires_grad=True)
    value = gauss.profile(x, torch.tensor(0.27))
    value.sum().backward()
    assert value.tolist() == [0, 0, 0]
    assert x.grad.isfinite().all()


def test_sinc_has_a_finite_gradient_on_the_taps():
    x = torch.tensor([-1.0, 0.0, 2.0], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: sinc.profile(x, None), x)


@pytest.mark.parametrize("interpolation", INTERPOLATIONS, ids=lambda i: i.name)
def test_objects_are_found_and_pickled(interpolation):
    assert find_interpolation(interpolation.name) is interpolation
    assert find_interpolation(interpolation) is interpolation
    assert pickle.loads(pickle.dumps(interpolation)) == interpolation


def test_a_width_is_refused_where_there_is_none():
    with pytest.raises(TypeError, match="bilinear interpolation has no width"):
        bilinear.width(torch.zeros(1))


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"name": 3}, TypeError, "name must be a word, got 3"),
        ({"name": ""}, TypeError, "name must be a word, got ''"),
        ({"minimum_width": "0.3", "initial_sigma": 0.2}, TypeError, "minimum_width must be .* got '0.3'"),
        ({"profile": "gauss"}, TypeError, "profile must be a function"),
        ({"minimum_width": 1.0}, ValueError, "must both be numbers, or both None.*got 1.0 and None"),
        (
            {"minimum_width": -1.0, "initial_sigma": 0.0},
            ValueError,
            "minimum_width must be .* at least 0, got -1.0",
        ),
        ({"minimum_width": 1.0, "initial_sigma": math.nan}, ValueError, "initial_sigma must be .*, got nan"),
    ],
)
def test_an_interpolation_that_makes_no_sense_is_refused(arguments, error, message):
    with pytest.raises(error, match=message):
        Interpolation(**{"name": "mine", "profile": torch.sinc} | arguments)


@pytest.mark.parametrize("name", ["gauss", "hypergauss"])
def test_products_of_profiles_are_normal_numbers(name):
    interpolation = find_interpolation(name)
    x = torch.linspace(-30, 30, 5001)
    values = interpolation.profile(x, torch.tensor(1.3))
    products = values.unsqueeze(0) * values.unsqueeze(1)
    assert values.count_nonzero() > 700
    assert not ((products > 0) & (products < torch.finfo(torch.float32).tiny)).any(), "slow on some CPUs"
    exact = interpolation.profile(x.double(), torch.tensor(1.3, dtype=torch.float64))
    assert_close(values, exact, "kernel")


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated")  # in torch's forward mode
@pytest.mark.parametrize("interpolation", [i for i in INTERPOLATIONS if i.has_width], ids=lambda i: i.name)
def test_profiles_have_the_slopes_of_their_formula_in_both_modes(interpolation):
    x = torch.tensor([[-1.3, -0.4, 0.3], [0.2, 0.7, 1.6]], dtype=torch.float64, requires_grad=True)
    width = torch.tensor([[0.8], [1.2]], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(interpolation.profile, (x, width), check_forward_ad=True)

"""The official layers against the official package itself, `dcls` 0.1.1, in function, parameters and interface."""

import copy
import inspect
import io
import pickle

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.oracles import official_modules
from tests.tolerances import TOLERANCE, assert_close
from torch import nn

import torchdcls
import torchdcls.official as official
from torchdcls import clamp_positions_, fuse, parameter_groups, reference_kernel
from torchdcls.official.kernels import Placement

AXES = {"Dcls1d": 1, "Dcls2d": 2, "Dcls3d": 3, "Dcls2dK1d": 2, "Dcls3_1d": 3}  # those in dcls 0.1.1
VERSIONS = ("v0", "v1", "max", "gauss")
PAIRS = [(name, version) for name in AXES for version in VERSIONS if (name, version) != ("Dcls3_1d", "v0")]
# Kernels that are all zero have a test of their own.
pytestmark = pytest.mark.filterwarnings("ignore:dilated_kernel_size")


def theirs(name):
    return getattr(official_modules(), name)


def pair(name, **arguments):
    """The official layer and ours, made from one seed."""
    layers = []
    for module in (official_modules(), official):
        torch.manual_seed(0)
        layers.append(getattr(module, name)(**arguments))
    return layers


def spread(*layers):
    """Put the elements all over the window and beyond, with widths of both signs, in all layers alike."""
    torch.manual_seed(1)
    reference = layers[0]
    position = torch.randn_like(reference.P)
    for row, size in zip(position, reference.dilated_kernel_size, strict=True):
        row *= size / 2.5
    width = torch.randn_like(reference.P)
    for layer in layers:
        layer.P.data.copy_(position)
        if layer.SIG is not None:
            layer.SIG.data.copy_(width)


@st.composite
def problems(draw):
    """A class, its arguments, and an input that the kernel fits in."""
    name, version = draw(st.sampled_from(PAIRS))
    axes, groups = AXES[name], draw(st.integers(1, 3))
    rows = 1 if "1d" in name else axes
    sizes = st.integers(1, 7)
    per_axis = st.tuples(*[st.integers(1, 3)] * axes)
    arguments = {
        "in_channels": groups * draw(st.integers(1, 2)),
        "out_channels": groups * draw(st.integers(1, 2)),
        "kernel_count": draw(st.integers(1, 4)),
        "stride": draw(st.one_of(st.integers(1, 3), per_axis)),
        "padding": draw(st.one_of(st.integers(0, 3), per_axis)),
        "dilated_kernel_size": draw(st.one_of(sizes, st.tuples(*[sizes] * rows))),
        "groups": groups,
        "bias": draw(st.booleans()),
        "padding_mode": draw(st.sampled_from(["zeros", "reflect", "replicate", "circular"])),
        "version": version,
    }
    if name == "Dcls3_1d":
        arguments["dense_kernel_size"] = draw(st.tuples(st.integers(1, 3), st.integers(1, 3)))
    if name == "Dcls2dK1d":
        arguments["flat_dim"] = draw(st.integers(0, 1))
    batch = draw(st.sampled_from([(), (1,), (2,)]))
    return name, arguments, (*batch, arguments["in_channels"], *draw(st.tuples(*[st.integers(7, 9)] * axes)))


@given(problems())
def test_outputs_and_all_gradients_are_theirs(problem):
    name, arguments, shape = problem
    their, our = (layer.double() for layer in pair(name, **arguments))
    spread(their, our)
    inputs = [torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(2)) for _ in range(2)]
    expected, actual = (layer(x.requires_grad_()) for layer, x in zip((their, our), inputs, strict=True))
    assert_close(actual, expected, "convolution")
    direction = torch.randn_like(expected)
    expected.backward(direction)
    actual.backward(direction)
    gradients, others = (
        {"input": x.grad} | {part: parameter.grad for part, parameter in layer.named_parameters()}
        for layer, x in zip((our, their), inputs, strict=True)
    )
    assert list(gradients) == list(others)
    # Where an element lies on one tap alone, what its position would change is all but divided away: not its norm, but
    # that of all gradients tells what rounding may do to it.
    floor = 1e-3 * sum(other.norm() for other in others.values())
    for part, gradient in gradients.items():
        allowed = TOLERANCE["gradient", torch.float64] * torch.maximum(others[part].norm(), floor)
        assert (gradient - others[part]).norm() <= allowed, part


@pytest.mark.parametrize(("name", "version"), PAIRS)
def test_one_seed_gives_the_same_start(name, version):
    their, our = pair(name, in_channels=8, out_channels=6, kernel_count=7, dilated_kernel_size=5, version=version)
    for _ in range(2):
        assert list(our.state_dict()) == list(their.state_dict())
        for part, value in our.state_dict().items():
            assert torch.equal(value, their.state_dict()[part]), part
        for layer in (their, our):
            torch.manual_seed(3)
            layer.reset_parameters()
    assert (our.SIG is None) == (version in ("v0", "v1"))


@pytest.mark.parametrize(("name", "version"), PAIRS)
@pytest.mark.parametrize("size", [1, 4, 7])
def test_positions_are_clamped_to_their_limits(name, version, size):
    their, our = pair(name, in_channels=3, out_channels=2, kernel_count=9, dilated_kernel_size=size, version=version)
    spread(their, our)
    for layer in (their, our):
        layer.P.data *= 3
        layer.clamp_parameters()
    assert torch.equal(our.P, their.P)
    assert our.P.abs().max() == size // 2


@pytest.mark.parametrize(("name", "version"), [each for each in PAIRS if each[0] in ("Dcls2d", "Dcls3d")])
def test_windows_that_are_not_square_have_their_limits(name, version):
    size = (3, 9, 21)[: AXES[name]]
    their, our = pair(name, in_channels=8, out_channels=8, kernel_count=9, dilated_kernel_size=size, version=version)
    for layer in (their, our):
        torch.manual_seed(5)
        layer.reset_parameters()
    assert torch.equal(our.P, their.P)
    spread(their, our)
    for layer in (their, our):
        layer.P.data *= 9
        layer.clamp_parameters()
    assert torch.equal(our.P, their.P)
    assert [int(row.abs().max()) for row in our.P] == [length // 2 for length in size]


@pytest.mark.parametrize("name", AXES)
def test_arguments_have_their_names_order_and_defaults(name):
    def arguments(function):
        return [(p.name, p.default, p.kind) for p in inspect.signature(function).parameters.values()]

    assert arguments(getattr(official, name)) == arguments(theirs(name))
    construct = "ConstructKernel" + ("1d" if name == "Dcls2dK1d" else name.removeprefix("Dcls"))
    assert arguments(getattr(official, construct)) == arguments(theirs(construct))
    for base in ("_DclsNd", "_DclsN_Md"):
        assert arguments(getattr(official, base)) == arguments(theirs(base))
        assert issubclass(getattr(official, name), getattr(official, base)) == issubclass(theirs(name), theirs(base))
    for method in ("_conv_forward", "forward", "clamp_parameters", "reset_parameters"):
        ours, others = (inspect.signature(getattr(cls, method)) for cls in (getattr(official, name), theirs(name)))
        assert list(ours.parameters) == list(others.parameters), method


@pytest.mark.parametrize("name", AXES)
def test_attributes_are_theirs(name):
    layers = pair(name, in_channels=4, out_channels=6, kernel_count=3, stride=2, padding=1, groups=2, version="v1")
    named = ["in_channels", "out_channels", "kernel_count", "stride", "padding", "dilated_kernel_size", "groups"]
    named += ["padding_mode", "version", "transposed", "output_padding"]
    for layer in layers:
        for part in (layer, layer.DCK):
            assert part.version == "v1"
            assert part.dilated_kernel_size == layers[0].dilated_kernel_size
            assert part.kernel_count == 3
    for attribute in named:
        assert getattr(layers[1], attribute) == getattr(layers[0], attribute), attribute
    assert list(layers[1]._reversed_padding_repeated_twice) == list(layers[0]._reversed_padding_repeated_twice)
    assert "kernel_count=3" in repr(layers[1])
    assert "version=v1" in repr(layers[1].DCK)


@pytest.mark.parametrize(("name", "version"), PAIRS)
def test_state_dicts_load_in_both_directions(name, version):
    arguments = {"in_channels": 4, "out_channels": 4, "kernel_count": 3, "dilated_kernel_size": 5, "version": version}
    their, our = pair(name, **arguments)
    spread(their)
    our.load_state_dict(their.state_dict())
    assert torch.equal(our.P, their.P)
    spread(our)
    our.P.data += 1
    their.load_state_dict(our.state_dict())
    assert torch.equal(our.P, their.P)


def test_grids_that_some_releases_save_are_left_out_and_nothing_else_is():
    layer = nn.Sequential(official.Dcls2_1d(2, 2, 1, dense_kernel_size=3, dilated_kernel_size=5))
    state = layer.state_dict()
    grids = {"0.DCK.IDX": torch.arange(5), "0.DCK.lim": torch.tensor([5])}
    layer.load_state_dict(state | grids)
    with pytest.raises(RuntimeError, match=r'Unexpected key\(s\) in state_dict: "0.DCK.I"'):
        layer.load_state_dict(state | grids | {"0.DCK.I": torch.arange(5)})
    with pytest.raises(RuntimeError, match=r'Missing key\(s\) in state_dict: "0.P"'):
        layer.load_state_dict({key: value for key, value in state.items() if key != "0.P"})


@pytest.mark.parametrize("after", ["v0", "v1", "max", "gauss"])
def test_the_version_of_the_kernel_constructor_counts_and_can_change(after):
    layers = pair("Dcls2d", in_channels=2, out_channels=2, kernel_count=3, dilated_kernel_size=(6, 4), version="gauss")
    spread(*layers)
    x = torch.randn(1, 2, 9, 9)
    before = layers[0](x)
    for layer in layers:
        layer.version = "nothing reads this"
        assert_close(layer(x), before, "convolution")
        layer.DCK.version = after
    assert_close(layers[1](x), layers[0](x), "convolution")


@torch.no_grad()
def test_edits_in_place_act_at_once():
    layers = pair("Dcls1d", in_channels=3, out_channels=2, kernel_count=2, dilated_kernel_size=9)
    x = torch.randn(1, 3, 30)
    spread(*layers)

    def edited(edit):
        for layer in layers:
            edit(layer)
        outputs = [layer(x) for layer in layers]
        assert_close(outputs[1], outputs[0], "convolution")
        return outputs[1]

    def freeze_and_shrink(layer):
        layer.SIG.requires_grad = False
        layer.SIG *= 0.5

    def make_discrete(layer):
        layer.version = layer.DCK.version = "max"
        layer.SIG *= 0
        layer.P.round_()
        layer.clamp_parameters()

    results = [edited(lambda layer: None), edited(freeze_and_shrink), edited(make_discrete)]
    assert not torch.allclose(results[0], results[1])
    assert not torch.allclose(results[1], results[2])
    kernel = layers[1].DCK(layers[1].weight, layers[1].P, layers[1].SIG)
    assert (kernel != 0).sum() <= layers[1].weight.numel(), "one tap each"


def test_parameters_are_shared_by_assignment():
    blocks = nn.ModuleList(official.Dcls2d(2, 2, 3, dilated_kernel_size=5, groups=2) for _ in range(2))
    blocks[1].P, blocks[1].SIG = blocks[0].P, blocks[0].SIG
    assert len(list(blocks.parameters())) == 6
    sum(block(torch.randn(1, 2, 9, 9)).sum() for block in blocks).backward()
    both = blocks[0].P.grad.clone()
    blocks.zero_grad()
    blocks[0](torch.randn(1, 2, 9, 9)).sum().backward()
    assert not torch.allclose(both, blocks[0].P.grad)
    copied = copy.deepcopy(blocks)
    assert copied[0].P is copied[1].P


def test_positions_that_channels_share_by_broadcasting():
    layers = pair("Dcls2d", in_channels=6, out_channels=6, kernel_count=4, dilated_kernel_size=(5, 7), groups=6)
    x, results = torch.randn(1, 6, 9, 9), []
    for layer in layers:
        torch.manual_seed(5)
        layer.P, layer.SIG = (nn.Parameter(torch.randn(2, 1, 1, 4)) for _ in range(2))
        results.append(layer(x))
        results[-1].sum().backward()
    assert_close(results[1], results[0], "convolution")
    assert_close(layers[1].P.grad, layers[0].P.grad, "gradient")


@pytest.mark.parametrize(("name", "version"), PAIRS)
def test_twenty_steps_of_training_follow_theirs(name, version):
    arguments = {"in_channels": 4, "out_channels": 4, "kernel_count": 3, "dilated_kernel_size": 7, "groups": 2}
    if name == "Dcls3_1d":
        arguments["dense_kernel_size"] = (2, 3)
    elif "1d" not in name:
        arguments["dilated_kernel_size"] = (5, 7, 4)[: AXES[name]]
    losses = []
    for layer in pair(name, version=version, **arguments):
        optimizer = torch.optim.AdamW(layer.parameters(), lr=0.02)
        generator = torch.Generator().manual_seed(4)
        losses.append([])
        for _ in range(20):
            x = torch.randn(2, 4, *(9,) * AXES[name], generator=generator)
            loss = (layer(x) - 1).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            layer.clamp_parameters()
            losses[-1].append(loss.item())
    assert losses[1] == pytest.approx(losses[0], rel=1e-4)
    assert losses[1][-1] < losses[1][0]


def test_the_width_of_max_gets_no_gradient_at_its_start():
    layers = pair("Dcls2d", in_channels=2, out_channels=2, kernel_count=3, dilated_kernel_size=5, version="max")
    for layer in layers:
        layer(torch.randn(1, 2, 9, 9)).square().sum().backward()
        assert layer.SIG.grad.abs().max() == 0
    native = official.from_official(layers[1])
    native(torch.randn(1, 2, 9, 9)).square().sum().backward()
    assert native.sigma.grad.abs().max() > 0


@pytest.mark.parametrize("version", ["v1", "max"])
def test_the_gradient_where_a_profile_has_a_kink(version):
    layers = pair("Dcls1d", in_channels=2, out_channels=2, kernel_count=3, dilated_kernel_size=7, version=version)
    x = torch.randn(1, 2, 20)
    for layer in layers:
        layer.P.data.round_()
        layer(x).square().sum().backward()
    assert_close(layers[1].P.grad, layers[0].P.grad, "gradient")


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("version", ["v1", "max", "gauss"])
@pytest.mark.parametrize(("size", "better"), [((23, 1), r"dense_axes=\(1,\)"), ((1, 23), r"dense_axes=\(0,\)")])
def test_flat_windows_have_their_empty_kernels_and_a_warning(version, size, better):
    arguments = {"in_channels": 4, "out_channels": 4, "kernel_count": 3, "dilated_kernel_size": size, "groups": 4}
    message = rf"position 0 at tap 11 of an axis that has 1.*torchdcls.Dcls2d\(.*{better}\) centres each axis"
    with pytest.warns(UserWarning, match=message) as caught:
        our = official.Dcls2d(**arguments, version=version)
    assert caught[0].filename == __file__
    their = theirs("Dcls2d")(**arguments, version=version)
    for layer in (our, their):
        assert layer.DCK(layer.weight, layer.P, layer.SIG).abs().max() < 1e-12
    native = torchdcls.Dcls2d(4, 4, 3, size, groups=4, dense_axes=(size.index(1),))
    assert native.dense_kernel().abs().max() > 0.01


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("size", [1, 9, (9, 9), (9, 5), (5, 9), (4, 2)])
def test_other_windows_raise_no_warning(size):
    official.Dcls2d(1, 1, 1, dilated_kernel_size=size)
    official.Dcls2d(1, 1, 1, dilated_kernel_size=(9, 1), version="v0")
    official.Dcls2dK1d(1, 1, 1, dilated_kernel_size=9)


@pytest.mark.filterwarnings("default")
def test_a_window_much_longer_than_wide_is_warned_of_too():
    with pytest.warns(UserWarning, match=r"tap 4 of an axis that has 3.*dilated_kernel_size=\(9, 3\)\) centres"):
        official.Dcls2d(1, 1, 1, dilated_kernel_size=(9, 3))


@pytest.mark.parametrize("version", ["v1", "max", "gauss"])
def test_dcls2_1d_learns_along_the_width_with_a_wider_gauss(version):
    layer = official.Dcls2_1d(2, 4, 3, (1, 2), (1, 0), 3, 7, 2, True, "zeros", version)
    assert layer.weight.shape == (4, 1, 3, 3)
    assert layer.P.shape == (1, 4, 1, 3, 3)
    assert layer.P.abs().max() > 2, "positions start all over the window"
    if layer.SIG is not None:
        assert ((0.23 if version == "gauss" else 0) == layer.SIG).all()
        nn.init.normal_(layer.SIG)
    kernel = layer.DCK(layer.weight, layer.P, layer.SIG)
    interpolation = layer.DCK.interpolation()
    assert kernel.shape == (4, 1, 3, 7)
    assert_close(kernel, reference_kernel(layer.weight, layer.P, layer.SIG, 7, interpolation), "kernel")
    x = torch.randn(1, 2, 9, 20)
    expected = nn.functional.conv2d(x, kernel, layer.bias, (1, 2), (1, 0), groups=2)
    assert_close(layer(x), expected, "convolution")
    # The same as a 3-D layer with one more dense axis, whose gauss is narrower by 0.73.
    other = theirs("Dcls3_1d")(2, 4, 3, dense_kernel_size=(1, 3), dilated_kernel_size=7, groups=2, version=version)
    width = None if layer.SIG is None else (layer.SIG.abs() + 0.73 * (version == "gauss")).unsqueeze(3)
    assert_close(kernel.unsqueeze(2), other.DCK(layer.weight.unsqueeze(2), layer.P.unsqueeze(3), width), "kernel")


def test_implicit_gemm_is_accepted_and_changes_nothing():
    x = torch.randn(1, 4, 9, 9)
    outputs = []
    for use in (True, False):
        torch.manual_seed(0)
        layer = official.Dcls2d(4, 4, 3, 2, 2, 5, 4, True, "circular", "gauss", use)
        assert layer.use_implicit_gemm is False
        outputs.append(layer(x))
    assert torch.equal(*outputs)
    assert outputs[0].shape == (1, 4, 5, 5), "stride is honoured"


def test_whole_numbers_of_any_kind():
    layer = official.Dcls2d(np.int64(4), 4, np.int32(3), [2, 1], padding=np.array([1, 2]), dilated_kernel_size=[5, 7])
    assert (layer.stride, layer.padding, layer.dilated_kernel_size) == ((2, 1), (1, 2), (5, 7))
    assert layer(torch.randn(1, 4, 9, 9)).shape == (1, 4, 4, 7)


def test_a_layer_derived_from_it_as_users_do():
    class Masked(official.Dcls1d):
        def __init__(self, *arguments, **named):
            super().__init__(*arguments, **named)
            self.mask = torch.tensor([1.0, 0.0])

        def forward(self, x):
            x = nn.functional.pad(x, (4, 2))
            return self._conv_forward(x, self.weight * self.mask[:, None, None], self.bias, self.P, self.SIG)

    layer = Masked(3, 2, kernel_count=1, dilated_kernel_size=5, bias=False)
    output = layer(torch.randn(2, 3, 10))
    assert output.shape == (2, 2, 12)
    assert output[:, 1].abs().max() == 0
    assert output[:, 0].abs().max() > 0


def test_it_is_saved_copied_compiled_and_exported():
    layer = official.Dcls2d(2, 2, 3, padding=(3, 2), dilated_kernel_size=(7, 5), version="max")
    x = torch.randn(1, 2, 9, 9)
    expected = layer(x)
    buffer = io.BytesIO()
    torch.save(layer, buffer)
    buffer.seek(0)
    again = [copy.deepcopy(layer), pickle.loads(pickle.dumps(layer)), torch.load(buffer, weights_only=False)]
    again.append(torch.compile(layer, fullgraph=True, backend="eager"))
    again.append(torch.export.export(layer, (x,)).module())
    for other in again:
        assert_close(other(x), expected, "convolution")


def test_half_precision_works_where_theirs_does_not():
    layer = official.Dcls2d(4, 4, 3, padding=2, dilated_kernel_size=5, groups=4)
    x = torch.randn(1, 4, 9, 9)
    expected = layer(x)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert_close(layer(x), expected, "convolution", torch.bfloat16)
    assert_close(layer.bfloat16()(x.bfloat16()), expected, "convolution", torch.bfloat16)


def test_rows_and_centres_of_each_version():
    assert Placement.of("v0", (9, 5)) == Placement((0, 1), (0, 0))
    assert Placement.of("v0", (9, 5), v0_width_first=True) == Placement((1, 0), (-2, 2))
    assert Placement.of("v0", (9, 5, 3)) == Placement((0, 2, 1), (0, -1, 1))
    assert Placement.of("max", (9, 5, 3)) == Placement((2, 1, 0), (-3, 0, 3))


ERRORS = {
    "version": (
        lambda: official.Dcls2d(1, 1, 1, version="v2"),
        ValueError,
        "version must be one of v0, v1, max, gauss, got 'v2'",
    ),
    "no-v0": (
        lambda: official.Dcls3_1d(1, 1, 1, version="v0"),
        ValueError,
        "version must be one of v1, max, gauss, got 'v0'",
    ),
    "construct": (
        lambda: official.ConstructKernel1d(1, 1, 1, 1, (3,), "Gauss"),
        ValueError,
        "version must be one of .* got 'Gauss'",
    ),
    "flat-dim": (lambda: official.Dcls2dK1d(1, 1, 1, flat_dim=2), ValueError, r"flat_dim must be 0, .* got 2"),
    "groups": (lambda: official.Dcls1d(3, 4, 1, groups=2), ValueError, "in_channels must be divisible by groups"),
    "mode": (lambda: official.Dcls1d(1, 1, 1, padding_mode="same"), ValueError, "padding_mode must be one of zeros"),
    "padding": (lambda: official.Dcls1d(1, 1, 1, padding="same"), TypeError, "padding must be an int .* got 'same'"),
    "size": (
        lambda: official.Dcls2d(1, 1, 1, dilated_kernel_size=(5, 0)),
        ValueError,
        r"dilated_kernel_size must be at least 1 on every axis, got \(5, 0\)",
    ),
    "count": (lambda: official.Dcls2d(1, 1, 2.5), TypeError, "kernel_count must be an int .* got 2.5"),
}


@pytest.mark.parametrize(("call", "error", "message"), ERRORS.values(), ids=ERRORS)
def test_bad_input_is_refused_with_a_clear_sentence(call, error, message):
    with pytest.raises(error, match=message):
        call()


def test_a_version_without_its_widths_is_refused_when_it_is_used():
    layer = official.Dcls1d(1, 1, 1, dilated_kernel_size=5, version="v1")
    layer.DCK.version = "max"
    with pytest.raises(ValueError, match="sigma must be given for the max interpolation, got None"):
        layer(torch.randn(1, 1, 9))
    layer.DCK.version = "triangle"
    with pytest.raises(ValueError, match="version must be one of v0, v1, max, gauss, got 'triangle'"):
        layer(torch.randn(1, 1, 9))


@pytest.mark.parametrize("version", ["v1", "max", "gauss"])
def test_positions_and_widths_are_known_as_such(version):
    layer = official.Dcls2d(4, 4, kernel_count=3, dilated_kernel_size=9, groups=4, version=version)
    model = nn.Sequential(layer, nn.Conv2d(4, 8, 1))
    groups = {group["name"]: group for group in parameter_groups(model, lr=1e-3, weight_decay=0.05)}
    expected = [layer.P] if layer.SIG is None else [layer.P, layer.SIG]
    assert list(map(id, groups["positions"]["params"])) == list(map(id, expected))
    assert (groups["positions"]["lr"], groups["positions"]["weight_decay"]) == (5e-3, 0.0)
    assert {id(layer.weight), id(model[1].weight)} == set(map(id, groups["decay"]["params"]))
    with torch.no_grad():
        layer.P.fill_(7.0)
    clamp_positions_(model)
    assert (layer.P == 4).all()
    with pytest.raises(ValueError, match=r"got layers of torchdcls.official; .*from_official\(model\) makes"):
        fuse(model)

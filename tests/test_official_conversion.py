"""From official layers, models and checkpoints to native ones; the official package under its own name."""

import argparse
import copy
import subprocess
import sys

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file
from tests.oracles import official_modules
from tests.test_official import PAIRS, pair, problems, spread
from tests.tolerances import assert_close
from torch import nn

import torchdcls
import torchdcls.official as official
from torchdcls.interpolation import bilinear, gauss, triangle
from torchdcls.official import from_official, normalized_bilinear
from torchdcls.official.__main__ import main

pytestmark = pytest.mark.filterwarnings("ignore:dilated_kernel_size")
INTERPOLATION = {"v0": bilinear, "v1": normalized_bilinear, "max": triangle, "gauss": gauss}


@given(problems(), st.booleans())
def test_native_layers_compute_the_same(problem, from_theirs):
    name, arguments, shape = problem
    their, our = (layer.double() for layer in pair(name, **arguments))
    spread(their, our)
    native = from_official(their if from_theirs else our)
    x = torch.randn(shape, dtype=torch.float64)
    expected, actual = our(x), native(x)
    assert_close(actual, expected, "convolution", scale=1e-6)
    assert isinstance(native, torchdcls.Dcls1d | torchdcls.Dcls2d | torchdcls.Dcls3d)
    assert native.interpolation == INTERPOLATION[arguments["version"]]
    direction = torch.randn_like(expected)
    expected.backward(direction)
    actual.backward(direction)
    rows = official.kernels.Placement.of(arguments["version"], our.dilated_kernel_size).rows
    gradient = native.position.grad.reshape(our.P.shape)
    for axis, row in enumerate(rows):
        assert_close(gradient[axis], our.P.grad[row], "gradient", scale=1e-3 * float(our.weight.grad.norm()))


@pytest.mark.parametrize("version", ["v1", "max", "gauss"])
def test_native_layers_of_dcls2_1d(version):
    layer = official.Dcls2_1d(2, 4, 3, (1, 2), (1, 3), 3, 7, groups=2, version=version)
    if layer.SIG is not None:
        nn.init.normal_(layer.SIG)
    native, x = from_official(layer), torch.randn(1, 2, 9, 20)
    assert native.dense_axes == (0,)
    assert_close(native(x), layer(x), "convolution")


def test_a_native_layer_keeps_what_the_official_one_was():
    layer = official.Dcls2dK1d(
        4, 6, 3, (2, 1), (0, 5), 11, 2, bias=False, padding_mode="circular", version="gauss", flat_dim=1
    ).eval()
    layer.SIG.requires_grad = False
    before = copy.deepcopy(layer.state_dict())
    native = from_official(layer)
    expected = "Dcls2d(4, 6, kernel_count=3, dilated_kernel_size=(1, 11), stride=(2, 1), padding=(0, 5), groups=2, "
    expected += "padding_mode=circular, dense_axes=(0,), bias=False, interpolation=gauss)"
    assert repr(native) == expected
    assert not native.training
    assert native.position.requires_grad
    assert not native.sigma.requires_grad
    native.weight.data.zero_()
    native.position.data.zero_()
    assert all(torch.equal(before[part], value) for part, value in layer.state_dict().items()), "source stays"


class Network(nn.Module):
    def __init__(self, modules=official, size=(7, 7)):
        super().__init__()
        self.stem = nn.Conv2d(3, 4, 3)
        padding = tuple(length // 2 for length in size)
        self.blocks = nn.ModuleList(
            modules.Dcls2d(4, 4, 5, padding=padding, dilated_kernel_size=size, groups=4) for _ in range(3)
        )
        self.blocks[1].P, self.blocks[1].SIG = self.blocks[0].P, self.blocks[0].SIG
        self.again = self.blocks[2]

    def forward(self, x):
        x = self.stem(x)
        for block in (*self.blocks, self.again):
            x = x + block(x)
        return x


def test_a_model_is_converted_in_a_copy_with_everything_shared_as_it_was():
    model, x = Network(), torch.randn(1, 3, 12, 12)
    spread(model.blocks[0], model.blocks[2])
    native = from_official(model)
    assert_close(native(x), model(x), "convolution")
    assert isinstance(model.blocks[0], official.Dcls2d)
    assert native.blocks[1].position is native.blocks[0].position
    assert native.blocks[1].sigma is native.blocks[0].sigma
    assert native.blocks[1].weight is not native.blocks[0].weight
    assert native.again is native.blocks[2]
    sizes = [sum(parameter.numel() for parameter in network.parameters()) for network in (native, model)]
    assert sizes[0] == sizes[1]
    groups = {group["name"]: group for group in torchdcls.parameter_groups(native, lr=1.0, weight_decay=0.1)}
    assert len(groups["positions"]["params"]) == 4
    assert_close(torchdcls.fuse(native)(x), model(x), "convolution")


def test_the_version_that_counts_is_the_one_converted():
    layer, x = official.Dcls2d(2, 2, 3, dilated_kernel_size=(7, 4), version="gauss"), torch.randn(1, 2, 9, 9)
    for version, interpolation in INTERPOLATION.items():
        layer.DCK.version = version
        native = from_official(layer)
        assert native.interpolation == interpolation
        assert (native.sigma is None) == (version in ("v0", "v1"))
        assert_close(native(x), layer(x), "convolution")


class Own(official.Dcls1d):
    def forward(self, input):
        return super().forward(input).relu()


class Renamed(official.Dcls1d):
    pass


def shared(first, second):
    second.P = first.P
    return nn.Sequential(first, second)


def with_kernel(layer):
    layer.DCK = nn.Identity()
    return layer


def broadcast(layer):
    layer.P = nn.Parameter(torch.zeros(1, 1, 1, 3))
    return layer


def weight_norm(layer):
    return torch.nn.utils.parametrizations.weight_norm(layer)


def with_version(layer, version):
    layer.DCK.version = version
    return layer


REFUSED = {
    "none": (lambda: nn.Sequential(nn.Linear(1, 1)), ValueError, "be or hold an official layer, got a Sequential"),
    "type": (lambda: 3, TypeError, "source must be a module or the mapping that a checkpoint holds, got int"),
    "forward": (
        lambda: nn.Sequential(Own(1, 1, 1)),
        TypeError,
        "layer 0 must compute what Dcls1d does, got a Own with a forward of its own",
    ),
    "kernel": (lambda: with_kernel(official.Dcls1d(1, 1, 1)), TypeError, "source must .* got a Dcls1d with a DCK of"),
    "base": (
        lambda: official._DclsNd(1, 1, 1, (1,), (0,), (3,), False, (0,), 1, True, "zeros", "gauss"),
        TypeError,
        "source must be one of Dcls1d, .* got _DclsNd",
    ),
    "shared": (
        lambda: shared(
            official.Dcls2d(2, 2, 3, dilated_kernel_size=(5, 7)), official.Dcls2d(2, 2, 3, dilated_kernel_size=(7, 5))
        ),
        ValueError,
        "layer 1 must have a P of its own, .* got that of layer 0, which becomes another one",
    ),
    "broadcast": (
        lambda: broadcast(official.Dcls1d(2, 2, 3)),
        ValueError,
        r"source must have a Parameter P of shape \(1, 2, 2, 3\), got \(1, 1, 1, 3\)",
    ),
    "parametrized": (
        lambda: weight_norm(official.Dcls1d(2, 2, 3)),
        ValueError,
        "source must have a Parameter weight of shape .* got Tensor",
    ),
    "widths": (
        lambda: with_version(official.Dcls1d(2, 2, 3, version="v1"), "max"),
        ValueError,
        r"source must have a Parameter SIG of shape \(1, 2, 2, 3\), got NoneType",
    ),
    "version": (
        lambda: with_version(official.Dcls1d(2, 2, 3), "sinc"),
        ValueError,
        "source must have a DCK.version of v0, v1, max, gauss, got 'sinc'",
    ),
    "holds": (lambda: {"epoch": 3}, ValueError, r"source must hold the positions P .* got 1 entries \(epoch, ...\)"),
    "weight": (
        lambda: {"a.P": torch.zeros(1, 2, 2, 3), "a.weight": torch.zeros(2, 2, 4)},
        ValueError,
        r"layer a must have a weight of shape \(2, 2, 3\), as P has it, got \(2, 2, 4\)",
    ),
    "v0-or-v1": (
        lambda: official.Dcls2d(1, 1, 1, version="v0").state_dict(),
        ValueError,
        "version must be v0 or v1 for source, which has no SIG",
    ),
    "2_1d": (
        lambda: nn.Sequential(official.Dcls2_1d(1, 1, 1)).state_dict(),
        ValueError,
        "version must be max or gauss for layer 0, a Dcls2_1d, got None",
    ),
}


@pytest.mark.parametrize(("source", "error", "message"), REFUSED.values(), ids=REFUSED)
def test_what_has_no_exact_counterpart_is_refused(source, error, message):
    with pytest.raises(error, match=message):
        from_official(source())


def test_derived_classes_that_change_nothing_are_converted():
    layer, x = Renamed(2, 2, 3, dilated_kernel_size=7), torch.randn(1, 2, 9)
    assert_close(from_official(layer)(x), layer(x), "convolution")


def test_arguments_that_do_not_fit_are_refused():
    layer = official.Dcls2d(1, 1, 1)
    with pytest.raises(ValueError, match=r"must be left out for a module, .* got 'v0' and None"):
        from_official(layer, version="v0")
    with pytest.raises(ValueError, match="version must be one of v0, v1, max, gauss, got 'v3'"):
        from_official(layer.state_dict(), version="v3")
    with pytest.raises(ValueError, match="source must not have a SIG in version v1"):
        from_official(layer.state_dict(), version="v1")
    with pytest.raises(ValueError, match="source must have a SIG in version max"):
        from_official(official.Dcls2d(1, 1, 1, version="v0").state_dict(), version="max")


CHECKPOINTS = {
    "state": lambda state: state,
    "model": lambda state: {"model": state, "epoch": 3},
    "lightning": lambda state: {"state_dict": state, "hyper_parameters": {}},
    "parallel": lambda state: {"model": {f"module.{key}": value for key, value in state.items()}},
    "compiled": lambda state: {f"module._orig_mod.{key}": value for key, value in state.items()},
}


@pytest.mark.parametrize("wrap", CHECKPOINTS.values(), ids=CHECKPOINTS)
@pytest.mark.parametrize(("name", "version"), [p for p in PAIRS if p[0] != "Dcls2dK1d"] + [("Dcls2_1d", "gauss")])
def test_checkpoints_become_state_dicts_of_native_models(name, version, wrap):
    arguments = {"in_channels": 2, "out_channels": 4, "kernel_count": 3, "dilated_kernel_size": 5, "groups": 2}
    if name.endswith("_1d"):
        arguments["dense_kernel_size"] = 3
    layer = getattr(official, name)(**arguments, version=version)
    spread(layer)
    model = nn.Sequential(nn.BatchNorm1d(2), layer)
    native = from_official(model)
    expected, state = copy.deepcopy(native.state_dict()), wrap(model.state_dict())
    converted = from_official(state, version=version)
    assert list(converted) == list(expected)
    native.load_state_dict(converted)
    for key, value in native.state_dict().items():
        assert torch.equal(value, expected[key]), key


def test_what_need_not_be_told_is_found_in_the_tensors():
    for layer in (official.Dcls1d(2, 2, 3, version="v1"), official.Dcls3d(2, 2, 3, version="max")):
        assert list(from_official(layer.state_dict())) == list(from_official(layer).state_dict())


@pytest.mark.parametrize("told", ["by the caller", "by the checkpoint"])
def test_windows_that_are_not_square(told):
    layer, x = official.Dcls2d(2, 4, 3, dilated_kernel_size=(9, 4), groups=2), torch.randn(1, 2, 12, 12)
    state = nn.Sequential(layer).state_dict()
    if told == "by the caller":
        converted = from_official(state, dilated_kernel_size=(9, 4))
    else:
        saved = torch.tensor([9, 4]).view(2, 1, 1, 1).expand(2, 4, 1, 3)
        converted = from_official(state | {"0.DCK.lim": saved, "0.DCK.IDX": torch.zeros(9, 4, 2, 4, 1, 3)})
    native = nn.Sequential(torchdcls.Dcls2d(2, 4, 3, (9, 4), groups=2))
    native.load_state_dict(converted)
    assert_close(native(x), layer(x), "convolution")
    with pytest.raises(ValueError, match=r"dilated_kernel_size must be .* 2 ints, .* got \(9, 4, 1\)"):
        from_official(state, dilated_kernel_size=(9, 4, 1))


@pytest.mark.parametrize("old", [False, True])
@pytest.mark.parametrize("kind", ["module", "flagged checkpoint", "old checkpoint"])
def test_the_older_order_of_v0(old, kind):
    layer = official.Dcls2d(1, 1, 1, dilated_kernel_size=(7, 5), bias=False, version="v0")
    layer.weight.data.fill_(1.0)
    layer.P.data = torch.tensor([1.0, 0.0]).view(2, 1, 1, 1)
    native = torchdcls.Dcls2d(1, 1, 1, (7, 5), bias=False, interpolation="bilinear")
    if kind == "module":
        native = from_official(layer, v0_width_first=old)
    elif kind == "flagged checkpoint":
        known = {"version": "v0", "dilated_kernel_size": (7, 5)}
        native.load_state_dict(from_official(layer.state_dict(), **known, v0_width_first=old))
    elif old:  # as releases saved it then, with the grids among the parameters
        grids = {"DCK.I": torch.zeros(7, 5, 1, 1, 1), "DCK.J": torch.zeros(7, 5, 1, 1, 1)}
        grids["DCK.lim"] = torch.tensor([7.0, 5.0]).view(2, 1, 1, 1)
        native.load_state_dict(from_official(layer.state_dict() | grids))
    else:
        return
    tap = native.dense_kernel()[0, 0].nonzero().tolist()
    # Row 0 is the height, centred at 7 // 2, and row 1 the width at 5 // 2; it was the other way around.
    assert tap == [[0 + 5 // 2, 1 + 7 // 2]] if old else [[1 + 7 // 2, 0 + 5 // 2]]


def test_the_command_line(tmp_path, capsys):
    model, x = Network(official_modules(), size=(7, 5)), torch.randn(1, 3, 12, 12)
    source, target = tmp_path / "in.pth", tmp_path / "out.safetensors"
    saved = {f"module.{key}": value for key, value in model.state_dict().items()}
    torch.save({"model": saved, "args": argparse.Namespace(lr=4e-3), "epoch": 7}, source)
    command = [sys.executable, "-m", "torchdcls.official", "convert", str(source), str(target), "--size", "7", "5"]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    assert printed[0] == "blocks.0: positions (2, 4, 1, 5)"
    assert printed[-1] == f"4 layers, 18 tensors in {target}"
    native = from_official(model)
    for parameter in native.parameters():
        nn.init.zeros_(parameter)
    native.load_state_dict(load_file(target))
    assert_close(native(x), model(x), "convolution")

    again = tmp_path / "again.pth"
    main(["convert", str(source), str(again), "--size", "7", "5"])
    capsys.readouterr()
    assert torch.equal(torch.load(again, weights_only=True)["blocks.0.position"], native.blocks[0].position)
    main(["convert", str(source), str(again)])
    assert "Windows were taken as square" in capsys.readouterr().out
    for arguments, message in [
        ([str(tmp_path / "none.pth"), str(target)], "none.pth"),
        ([str(target), str(again)], "source must hold the positions P of official layers, got 18 entries"),
        ([str(source), str(again), "--version", "v1"], "layer blocks.0 must not have a SIG in version v1"),
    ]:
        with pytest.raises(SystemExit, match=message):
            main(["convert", *arguments])


class Harmful:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (str(self.path), "w")


def test_no_code_of_a_checkpoint_runs(tmp_path):
    source, proof = tmp_path / "in.pth", tmp_path / "proof"
    torch.save({"model": {}, "extra": Harmful(proof)}, source)
    with pytest.raises(ValueError, match=r"in.pth must be a file of torch.save with tensors.*so that no code runs"):
        official.convert(source, tmp_path / "out.pth")
    assert not proof.exists()
    torch.save([1, 2], source)
    with pytest.raises(ValueError, match="must hold a dict, got list"):
        official.convert(source, tmp_path / "out.pth")
    source.write_text("text")
    with pytest.raises(ValueError, match=r"in.pth must be a file of torch.save"):
        official.convert(source, tmp_path / "out.pth")
    torch.save({"P": torch.zeros(1, 1, 1, 1), "weight": torch.zeros(1, 1, 1), "note": "text"}, source)
    with pytest.raises(ValueError, match="must hold tensors alone beside its layers, got note"):
        official.convert(source, tmp_path / "out.pth")


INSTALLED = """
import sys, importlib.util, torch
import torchdcls.official as official
official.install()
official.install()
import DCLS
import DCLS.construct.modules as modules
from DCLS.construct.modules import Dcls2d, _DclsNd, _DclsN_Md, ConstructKernel3_1d
from DCLS.construct.modules.Dcls import Dcls1d
assert DCLS.construct.modules is modules and modules.Dcls.Dcls2d is Dcls2d
names = {}
exec("from DCLS.construct.modules import *", names)
for name in official.__all__:
    if "1d" in name or "2d" in name or "3d" in name:
        assert getattr(modules, name) is getattr(official, name)
        assert names[name] is getattr(official, name)
assert Dcls1d is official.Dcls1d and issubclass(Dcls2d, _DclsNd)
assert importlib.util.find_spec("DCLS.construct.modules") is not None
try:
    import DCLS.construct.functions
except ModuleNotFoundError:
    pass
else:
    raise AssertionError("there is no such module")
model, x, expected = torch.load(sys.argv[1], weights_only=False)
assert type(model[0]) is official.Dcls2d, "a whole model saved by the official package"
print(model)
torch.testing.assert_close(model(x), expected)
torch.testing.assert_close(official.from_official(model)(x), expected)
"""


def test_programs_that_can_not_be_edited(tmp_path):
    modules, x = official_modules(), torch.randn(1, 4, 12, 12)
    model = nn.Sequential(
        modules.Dcls2d(4, 4, 5, padding=3, dilated_kernel_size=(7, 6), groups=4), modules.Dcls2dK1d(4, 4, 2)
    )
    torch.save((model, x, model(x).detach()), tmp_path / "model.pth")
    command = [sys.executable, "-c", INSTALLED, str(tmp_path / "model.pth")]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    with pytest.raises(RuntimeError, match=r"install\(\) must come before .* got DCLS from .*DCLS.__init__.py already"):
        official.install()
    assert sys.modules["DCLS.construct.modules"] is modules


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ({3: torch.ones(1)}, "source must be a state dict, with names as keys, got 3"),
        ({"a.P": 3, "a.weight": torch.ones(2, 1, 3)}, "layer a must have a tensor P, got int"),
        (
            {"a.P": torch.ones(2, 4, 1, 3), "a.weight": torch.ones(4, 1, 3), "a.SIG": torch.ones(2, 1, 1, 3)},
            r"layer a must have a SIG of the shape of P, \(2, 4, 1, 3\), got \(2, 1, 1, 3\)",
        ),
    ],
)
def test_checkpoints_of_another_kind_are_refused(state, message):
    with pytest.raises(ValueError, match=message):
        from_official(state)

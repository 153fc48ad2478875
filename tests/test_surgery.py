import copy
import re
import warnings
from dataclasses import FrozenInstanceError

import numpy as np
import pytest
import timm
import torch
import torchvision
from tests.tolerances import assert_close
from torch import nn

from torchdcls import (
    Conv2d,
    Dcls1d,
    Dcls2d,
    Dcls3d,
    fuse,
    is_depthwise,
    matching_kernel_count,
    replace_convolutions,
    to_dcls,
)


def parameters(model):
    return sum(parameter.numel() for parameter in model.parameters())


def depthwise_network(size=5):
    def block(channels, stride=1):
        return nn.Sequential(
            nn.Conv2d(channels, channels, size, stride, padding=size // 2, groups=channels),
            nn.Conv2d(channels, channels, 1),
            nn.GELU(),
        )

    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.Sequential(block(8), block(8, stride=2)))


PAPER = [
    ("convnext_tiny", 17, 34, "bilinear", 28.5877),
    ("convnext_tiny", 23, 26, "triangle", 28.5865),
    ("convnext_tiny", 23, 26, "gauss", 28.5865),
    ("convnext_tiny", 17, 26, "gauss", 28.5865),
    ("convnext_tiny", 23, 34, "gauss", 28.6856),
    ("convformer_s18", 17, 34, "bilinear", 26.7640),
    ("convformer_s18", 23, 26, "triangle", 26.7578),
    ("convformer_s18", 23, 26, "gauss", 26.7578),
]


@pytest.mark.parametrize(("name", "size", "count", "interpolation", "millions"), PAPER)
def test_the_papers_networks(name, size, count, interpolation, millions):
    with torch.device("meta"):
        model = timm.create_model(name)
        stock = parameters(model)
        if (size, count) != (23, 34):
            assert matching_kernel_count(model, interpolation) == count
        report = to_dcls(model, count, size, interpolation)
    assert len(report) == 18
    assert {row.before for row in report} == {"Conv2d 7x7"}
    assert round(parameters(model) / 1e6, 4) == millions
    assert sum(row.parameters_after - row.parameters_before for row in report) == parameters(model) - stock
    distinct = {id(layer.position) for layer in model.modules() if isinstance(layer, Dcls2d)}
    assert len(distinct) == 4, "positions are shared within each of the four stages"


TIMM = [
    "convnext_atto",
    "convnextv2_atto",
    "convformer_s18",
    "caformer_s18",
    "mobilenetv3_small_100",
    "mobilenetv2_100",
    "efficientnet_b0",
    "mnasnet_small",
    "edgenext_xx_small",
    "mixnet_s",
    "lcnet_050",
    "ghostnet_100",
    "fastvit_t8",
    "inception_next_atto",
]


@pytest.mark.parametrize("name", TIMM)
def test_families_of_timm(name):
    stock = timm.create_model(name, num_classes=7).eval()
    model = copy.deepcopy(stock)
    report = to_dcls(model, kernel_count=3, dilated_kernel_size=9)
    assert len(report) > 0
    assert not any(is_depthwise(*place) for place in model.named_modules())
    image = torch.randn(1, 3, 64, 64)
    shapes = []
    for network in (stock, model):
        seen = []
        for module in network.modules():
            if isinstance(module, nn.Conv2d | Dcls2d):
                module.register_forward_hook(lambda _, __, output, seen=seen: seen.append(output.shape))
        network(image)
        shapes.append(seen)
    assert shapes[0] == shapes[1]


def test_torchvision_and_transformers():
    image = torch.randn(1, 3, 64, 64)
    model = torchvision.models.convnext_tiny(num_classes=7)
    report = to_dcls(model)
    assert [row.shared for row in report] == [3] * 6 + [9] * 9 + [3] * 3
    assert model(image).shape == (1, 7)
    transformers = pytest.importorskip("transformers")
    config = transformers.ConvNextConfig(hidden_sizes=[8, 16, 24, 32], depths=[1, 2, 2, 1], num_labels=7)
    model = transformers.ConvNextForImageClassification(config)
    assert [row.shared for row in to_dcls(model, 3, 9)] == [1, 2, 2, 2, 2, 1]
    assert model(image).logits.shape == (1, 7)


@pytest.mark.parametrize("axes", [1, 3])
@pytest.mark.parametrize("start", ["random", "fit"])
def test_other_dimensions_and_dense_convolutions(axes, start):
    conv = {1: nn.Conv1d, 3: nn.Conv3d}[axes]
    model = nn.Sequential(conv(2, 4, 3, stride=2, padding=1), conv(4, 4, (4, 2, 3)[:axes], groups=2, dilation=2))
    x = torch.randn(2, 2, *[16] * axes)
    expected = model(x)
    to_dcls(model, 2, 7, "triangle", where=lambda name, conv: True, start=start)
    assert {type(layer) for layer in model} == {{1: Dcls1d, 3: Dcls3d}[axes]}
    assert model(x).shape == expected.shape


def test_only_what_where_wants_is_replaced_and_it_sees_torchs_convolutions_only():
    model, seen = depthwise_network(), []

    def where(name, module):
        seen.append((name, type(module)))
        return name == "1.1.0"

    report = to_dcls(model, 3, 9, where=where)
    assert {kind for _, kind in seen} == {nn.Conv2d}
    assert [row.name for row in report] == ["1.1.0"]
    assert isinstance(model[1][0][0], nn.Conv2d)
    assert isinstance(model[1][1][0], Dcls2d)
    more = to_dcls(model, 3, 9, where=lambda name, module: name == "1.0.0")  # another call may go on
    assert [row.name for row in more] == ["1.0.0"]


def test_depthwise():
    assert is_depthwise("", nn.Conv1d(4, 8, 3, groups=4))
    assert is_depthwise("", nn.Conv3d(4, 4, (1, 1, 3), groups=4))
    for module in (nn.Conv2d(4, 4, 3), nn.Conv2d(4, 4, 1, groups=4), nn.Conv2d(1, 8, 3), nn.Linear(4, 4)):
        assert not is_depthwise("", module)


def test_a_module_in_two_places_stays_one():
    conv = nn.Conv2d(4, 4, 3, padding=1, groups=4)
    model = nn.Sequential(conv, nn.ReLU(), conv)
    report = to_dcls(model, 2, 5)
    assert len(report) == 1
    assert model[0] is model[2]
    assert [place for place in fuse(model) if isinstance(place, Conv2d)] == [model[0], model[2]]


def test_an_error_leaves_the_model_as_it_was():
    model = nn.Sequential(nn.Conv2d(4, 4, 3, groups=4), timm.layers.Conv2dSame(4, 4, 3, groups=4))
    before = list(model)
    with pytest.raises(TypeError, match=r"^1: conv must compute what torch.nn.Conv2d does, got a Conv2dSame"):
        to_dcls(model, 2, 5)
    assert list(model) == before


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"share": "model"}, ValueError, "share must be 'stage'"),
        ({"share": lambda name, layer: 1 / 0}, ZeroDivisionError, "division"),
        ({"share": lambda name, layer: [1]}, TypeError, "unhashable"),
        ({"start": "fit"}, ValueError, r"^1: start='fit' needs kernels of finite numbers"),
    ],
)
def test_an_error_on_the_way_leaves_the_model_as_it_was(settings, error, message):
    model = nn.Sequential(nn.Conv2d(4, 4, 1), nn.Conv2d(4, 4, 5, groups=4))
    model[1].weight.data[0, 0, 0, 0] = float("nan")
    before = list(model)
    with pytest.raises(error, match=message):
        to_dcls(model, 2, 5, **settings)
    assert list(model) == before


def test_what_is_made_must_be_a_module():
    model = nn.Sequential(nn.Conv2d(4, 4, 1), nn.Conv2d(4, 4, 5))
    before = list(model)
    with pytest.raises(TypeError, match=r"make must return a torch.nn.Module, got NoneType for 1"):
        replace_convolutions(model, lambda *_: True, lambda name, conv: conv if name == "0" else None)
    assert list(model) == before


def test_the_report_prints_as_a_table():
    model = depthwise_network()
    text = str(to_dcls(model, 10, 9, start="fit")).splitlines()
    assert len(text) == 4
    assert text[0].split() == ["layer", "before", "after", "shared", "by", "parameters", "error"]
    assert text[1].startswith("1.0.0     Conv2d 5x5  Dcls2d 9x9 / 10, gauss  2          208 -> 408")
    assert text[3].startswith("2 layers")
    assert text[3].endswith("416 -> 496")


def test_modes_devices_and_dtypes_are_kept():
    model = depthwise_network().double().eval()
    model[1][0][0].requires_grad_(False)
    to_dcls(model, 3, 9)
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float64}
    assert not any(module.training for module in model.modules())
    assert not model[1][0][0].bias.requires_grad
    with torch.device("meta"):
        meta = depthwise_network()
    to_dcls(meta, 3, 9)
    assert {parameter.device.type for parameter in meta.parameters()} == {"meta"}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("training", [False, True])
def test_fused_networks_compute_the_same(dtype, training):
    model = depthwise_network()
    to_dcls(model, 3, 23)
    model = model.to(dtype).train(training)
    x = torch.randn(2, 3, 16, 16, dtype=dtype)
    expected = model(x)
    fused = fuse(copy.deepcopy(model))
    assert all(module.training == training for module in fused.modules())
    assert not any(isinstance(module, Dcls2d) for module in fused.modules())
    assert set(fused.state_dict()) == {name for name, _ in depthwise_network().named_parameters()}
    assert_close(fused(x), expected, "convolution")


def test_fused_networks_load_into_torchs_own_and_export(tmp_path):
    model = depthwise_network()
    to_dcls(model, 3, 23)
    fused = fuse(model).eval()
    plain = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Sequential(*(_plain_block(stride) for stride in (1, 2)))).eval()
    plain.load_state_dict(fused.state_dict())
    x = torch.randn(2, 3, 16, 16)
    assert_close(plain(x), fused(x), "convolution")
    exported = torch.export.export(fused, (x,), dynamic_shapes=({0: torch.export.Dim("batch")},))
    assert "torchdcls" not in str(exported.graph)
    assert_close(exported.module()(torch.cat([x, x])), fused(torch.cat([x, x])), "convolution")
    onnx, onnxruntime = pytest.importorskip("onnx"), pytest.importorskip("onnxruntime")
    path = str(tmp_path / "model.onnx")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's exporter and its dependencies
        torch.onnx.export(fused, (x,), path, dynamo=True, verbose=False)
    onnx.checker.check_model(path)
    (result,) = onnxruntime.InferenceSession(path).run(None, {"input": x.numpy()})
    assert_close(torch.from_numpy(np.asarray(result)), fused(x), "gradient")


def _plain_block(stride):
    return nn.Sequential(nn.Conv2d(8, 8, 23, stride, 11, groups=8), nn.Conv2d(8, 8, 1), nn.GELU())


def test_replacements_by_hand():
    model = depthwise_network()
    names = replace_convolutions(model, is_depthwise, lambda name, conv: nn.Identity())
    assert names == ["1.0.0", "1.1.0"]
    assert isinstance(model[1][0][0], nn.Identity)


DENSE = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 1))
ERRORS = {
    "no-model": (lambda: to_dcls([DENSE]), TypeError, "model must be a torch.nn.Module, got list"),
    "no-model-fuse": (lambda: fuse(None), TypeError, "model must be a torch.nn.Module, got NoneType"),
    "no-model-matching": (lambda: matching_kernel_count(nn.Linear), TypeError, "got the class Linear"),
    "where": (lambda: to_dcls(DENSE, where="dwconv"), TypeError, "where must be a function of .*, got 'dwconv'"),
    "where-matching": (lambda: matching_kernel_count(DENSE, where=None), TypeError, "where must be .*, got None"),
    "where-replace": (lambda: replace_convolutions(DENSE, 3, None), TypeError, "where must be a function of .* got 3"),
    "nothing": (
        lambda: to_dcls(copy.deepcopy(DENSE)),
        ValueError,
        r"where must hold for .* Sequential, got none of 1 Conv2d 3x3 \(0\); 1 Conv2d 1x1 \(1\); pass a function",
    ),
    "no-convolution": (lambda: to_dcls(nn.Linear(1, 1)), ValueError, "got none of none that there are"),
    "twice": (lambda: _twice(), ValueError, "convolutions left to convert, got one with 2 Dcls layers already"),
    "itself": (lambda: to_dcls(nn.Conv2d(4, 4, 3, groups=4)), ValueError, "got a Conv2d that is one itself; use from_"),
    "count": (lambda: to_dcls(depthwise_network(), 0), ValueError, "kernel_count must be at least 1 .* got 0"),
    "size": (lambda: to_dcls(depthwise_network(), 3, 0), ValueError, "1.0.0: dilated_kernel_size must be at least 1"),
    "start": (lambda: to_dcls(depthwise_network(), start="best"), ValueError, "start must be 'random' or 'fit', got"),
    "share": (lambda: to_dcls(depthwise_network(), share="model"), ValueError, "share must be 'stage', None or"),
    "interpolation": (lambda: to_dcls(depthwise_network(), interpolation="cubic"), ValueError, "got 'cubic'"),
    "lazy": (
        lambda: to_dcls(nn.Sequential(nn.LazyConv2d(4, 3)), where=lambda *_: True),
        ValueError,
        "lazy convolution",
    ),
    "fuse": (lambda: fuse(DENSE), ValueError, "model must hold a Dcls layer to fuse, got a Sequential without one"),
    "fuse-itself": (lambda: fuse(Dcls2d(1, 1, 1, 1)), ValueError, "got a Dcls2d that is one itself"),
    "matching": (lambda: matching_kernel_count(DENSE), ValueError, "got none of 1 Conv2d 3x3"),
    "matching-few": (
        lambda: matching_kernel_count(nn.Sequential(nn.Conv1d(4, 4, 2, groups=4))),
        ValueError,
        "got 8 weights and 12 parameters for one gauss element in each kernel",
    ),
    "replace": (lambda: replace_convolutions(DENSE, is_depthwise, None), ValueError, "where must hold for at least"),
}


def _twice():
    model = depthwise_network()
    to_dcls(model, 3, 9)
    to_dcls(model, 3, 9)


@pytest.mark.parametrize(("call", "error", "message"), ERRORS.values(), ids=ERRORS)
def test_every_refusal_says_what_to_do(call, error, message):
    with pytest.raises(error, match=message):
        call()


def test_the_table_that_a_conversion_prints():
    def network():
        torch.manual_seed(0)
        return nn.Sequential(
            nn.Conv2d(4, 4, 7, padding=3, groups=4), nn.Conv2d(4, 8, 1), nn.Conv2d(8, 8, 3, padding=1, groups=8)
        )

    assert str(to_dcls(network(), 5, 9)).splitlines() == [
        "layer     before      after                  shared by  parameters",
        "0         Conv2d 7x7  Dcls2d 9x9 / 5, gauss  1          200 -> 104",
        "2         Conv2d 3x3  Dcls2d 9x9 / 5, gauss  1          80 -> 208",
        "2 layers                                                280 -> 312",
    ]
    fitted = str(to_dcls(network(), 49, 9, "bilinear", start="fit", share=None)).splitlines()
    assert fitted[0] == "layer     before      after                      shared by  parameters    error"
    assert all(re.search(r"\d\.\de[-+]\d\d$", line) for line in fitted[1:3])
    assert re.search(r" 280 -> [\d,]+$", fitted[3])
    (first, _) = to_dcls(network())
    assert first.after == "Dcls2d 23x23 / 26, gauss"
    with pytest.raises(FrozenInstanceError):
        first.after = "another"


@pytest.mark.parametrize(
    ("model", "there"),
    [
        (
            nn.Sequential(nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 1), nn.Conv2d(4, 4, 1)),
            "1 Conv2d 3x3 (0); 2 Conv2d 1x1 (1, ...)",
        ),
        (nn.Sequential(nn.ReLU()), "none that there are"),
        (nn.Conv2d(3, 4, 3), "1 Conv2d 3x3 (the model itself)"),
    ],
    ids=["several", "none", "itself"],
)
def test_what_was_there_is_listed_where_nothing_was_chosen(model, there):
    with pytest.raises(ValueError, match=rf"of the \w+, got none of {re.escape(there)}; pass a function"):
        to_dcls(model)

"""Valid configurations of whole networks: conversion, fitting, sharing, fusing."""

import copy

import torch
from tests.oracles import slow_convolution, slow_kernel
from tests.robustness.case import Case, Draw, Raw, call
from tests.robustness.valid import CANCELLED, agree, interpolation, norm
from tests.tolerances import assert_close, relative_error
from torch import nn

from torchdcls import Dcls1d, Dcls2d, Dcls3d, matching_kernel_count, to_dcls
from torchdcls.interpolation import INTERPOLATIONS

EXACT = ("bilinear", "triangle", "sinc")  # whose elements can stand for one tap alone
FITTED = 1e-5  # how close a network with exactly fitted elements comes: the fit's ridge leaves 1e-6 a kernel
DCLS = (Dcls1d, Dcls2d, Dcls3d)


class Oracle(nn.Module):
    """What a Dcls layer computes, slowly."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, x):
        layer = self.layer
        return slow_convolution(
            x, slow_kernel(layer), layer.bias, layer.stride, layer.padding, layer.groups, layer.padding_mode
        )


def with_oracles(model):
    """A copy of a network with an oracle for each Dcls layer."""
    model = copy.deepcopy(model)
    for name, module in list(model.named_modules(remove_duplicate=False)):
        if isinstance(module, DCLS):
            model.set_submodule(name, Oracle(module))
    return model


def network(draw: Draw, axes: int) -> tuple[str, tuple[int, ...], int]:
    """Code for stages of blocks, the shape of their input, and the largest kernel."""
    largest = (7, 5, 3)[axes - 1]
    channels, stages = draw.randint(1, 3), []
    shape = (2, channels, *draw.sizes(axes, *((20, 30), (12, 16), (8, 9))[axes - 1]))
    for stage in range(draw.randint(1, 3)):
        width, blocks = draw.choice([2, 4]), []
        kernel = draw.sizes(axes, 2, largest)
        for block in range(draw.randint(1, 3)):
            first = stage == block == 0  # a depthwise one, so that there is always something to convert
            stride = 2 if block == 0 and draw.maybe(0.3) else 1
            spatial = {
                "kernel_size": kernel if first or draw.maybe(0.8) else draw.sizes(axes, 1, largest),
                "stride": stride,
                "padding": "same" if stride == 1 and draw.maybe(0.3) else tuple(k // 2 for k in kernel),
                "groups": width if first else draw.choice([width, width, 1, 2]),
                "bias": draw.maybe(0.7),
            }
            depthwise = call(f"nn.Conv{axes}d", {"in_channels": width, "out_channels": width, **spatial})
            pointwise = f"nn.Conv{axes}d({channels}, {width}, 1)"
            blocks.append(f"nn.Sequential({pointwise}, {depthwise}, {draw.choice(['nn.GELU()', 'nn.ReLU()'])})")
            channels = width
        stages.append(f"nn.Sequential({', '.join(blocks)})")
    return f"nn.Sequential({', '.join(stages)})", shape, largest


def to_dcls_case(draw: Draw) -> Case:
    """`to_dcls` and `fuse` on a random network."""
    axes = draw.randint(1, 3)
    stock, shape, largest = network(draw, axes)
    fit = draw.maybe(0.4)
    exact = fit and draw.maybe()
    size = largest + draw.randint(0, 2) if exact else draw.randint(1, (25, 9, 4)[axes - 1])
    arguments = {
        "kernel_count": largest**axes if exact else draw.randint(1, 6),
        "dilated_kernel_size": size,
        "interpolation": draw.choice(EXACT) if exact else interpolation(draw),
        "where": Raw("every") if draw.maybe() else Raw("is_depthwise"),
        "share": draw.choice(["stage", None, Raw("lambda name, module: name[-1]")]),
        "start": "fit" if fit else "random",
    }
    code = (
        f"torch.manual_seed({draw.randrange(10**6)})\n"
        + f"stock = {stock}.double()\n"
        + "import copy\n"
        + "def every(name, module):\n    return max(module.kernel_size) > 1\n"
        + "model = copy.deepcopy(stock)\n"
        + f"report = to_dcls(model, {call('', arguments)[1:-1]})\n"
        + f"x = torch.randn{shape!r}.double().requires_grad_()\n"
        + "output = model(x)\n"
        + "fused = fuse(copy.deepcopy(model))"
    )
    return Case("to_dcls", code, lambda names: check_conversion(names, arguments, exact))


def check_conversion(names, arguments, exact):
    """Everything that a conversion promises."""
    stock, model, report, x = (names[name] for name in ("stock", "model", "report", "x"))
    twin = x.detach().clone().requires_grad_()
    expected = with_oracles(model)(twin)
    agree(names["output"], expected, [x], [twin], (norm(x), 1.0), torch.float64)
    assert_close(names["fused"](x), expected, "convolution", scale=CANCELLED * norm(expected))
    before = stock(x)
    assert names["output"].shape == before.shape
    modules = {name: module for name, module in model.named_modules() if isinstance(module, DCLS)}
    assert [row.name for row in report] == list(modules)
    grown = sum(p.numel() for p in model.parameters()) - sum(p.numel() for p in stock.parameters())
    assert grown == sum(row.parameters_after - row.parameters_before for row in report)
    check_sharing(modules, arguments["share"], report)
    for row in report:
        if arguments["start"] == "fit":
            original, layer = stock.get_submodule(row.name), modules[row.name]
            missed = distance(original, layer)
            assert abs(missed - row.error) <= 1e-6 * max(1.0, missed), f"an error of {missed} reported as {row.error}"
            assert not exact or row.error < FITTED, f"an exact fit misses {row.error:.1e}"
        else:
            assert row.error is None
    if exact:
        error = relative_error(names["output"], before)
        assert error < FITTED, f"a network with exactly fitted elements is off by {error:.1e}"
    check_matching(stock, arguments, names)


def distance(conv, layer) -> float:
    """Between the kernels of a convolution and of a layer, middle on middle, as a share of the first one's norm."""
    kernel, made = conv.weight.detach(), slow_kernel(layer).detach()
    missed = made.square().sum().item()
    middle = [s // 2 for s in layer.dilated_kernel_size]
    extent = [d * (k - 1) + 1 for d, k in zip(conv.dilation, kernel.shape[2:], strict=True)]
    for tap in torch.cartesian_prod(*map(torch.arange, kernel.shape[2:])).reshape(-1, layer.axes).tolist():
        value = kernel[(slice(None), slice(None), *tap)]
        at = [m + d * t - e // 2 for m, d, t, e in zip(middle, conv.dilation, tap, extent, strict=True)]
        if all(0 <= place < s for place, s in zip(at, layer.dilated_kernel_size, strict=True)):
            found = made[(slice(None), slice(None), *at)]
            missed += (found - value).square().sum().item() - found.square().sum().item()
        else:
            missed += value.square().sum().item()
    return (max(missed, 0.0) / kernel.square().sum().item()) ** 0.5


def check_sharing(modules, share, report):
    """One position for each stage, or each last part of a name, and shape; or one for each layer."""
    keys = {}
    for name, module in modules.items():
        key = name if share is None else name.split(".")[0] if share == "stage" else name[-1]
        keys.setdefault((key, module.position.shape), []).append(module)
    for group in keys.values():
        assert len({id(module.position) for module in group}) == 1, "layers of one stage do not share"
        assert len({id(module.sigma) for module in group}) == 1, "layers of one stage do not share widths"
    assert len({id(module.position) for module in modules.values()}) == len(keys), "layers of two stages share"
    sizes = {id(module): len(group) for group in keys.values() for module in group}
    assert [row.shared for row in report] == [sizes[id(modules[row.name])] for row in report]


def check_matching(plain, arguments, names):
    """The largest count that adds no parameter: that one does not, one more does."""
    # Some arguments are code, such as that of a function.
    options = {name: eval(repr(arguments[name]), names) for name in ("interpolation", "share", "where")}
    try:
        count = matching_kernel_count(plain, **options)
    except ValueError as error:
        if "element" not in str(error):  # more parameters than the kernels have weights
            raise
        count = 0
    before = sum(p.numel() for p in plain.parameters())
    for more in (0, 1):
        if count + more == 0:
            continue
        model = copy.deepcopy(plain)
        to_dcls(model, count + more, 3, **options)
        after = sum(p.numel() for p in model.parameters())
        assert (after > before) == bool(more), f"{count + more} elements make {after} parameters of {before}"


def share_case(draw: Draw) -> Case:
    """`share_positions`: one parameter, with the sum of the gradients."""
    axes, layers = draw.randint(1, 3), draw.randint(1, 4)
    size = draw.sizes(axes, 1, (15, 6, 4)[axes - 1])
    arguments = {
        "in_channels": 2,
        "out_channels": 2,
        "kernel_count": draw.randint(1, 4),
        "dilated_kernel_size": size,
        "padding": "same",
        "groups": draw.choice([1, 2]),
        "interpolation": draw.choice([i.name for i in INTERPOLATIONS]),
        "dtype": Raw("torch.float64"),
    }
    code = (
        f"torch.manual_seed({draw.randrange(10**6)})\n"
        + f"layers = [{call(f'Dcls{axes}d', arguments)} for _ in range({layers})]\n"
        + f"share_positions({draw.choice(['layers', 'iter(layers)', 'nn.ModuleList(layers)', 'tuple(layers)'])})\n"
        + f"x = torch.randn{(2, 2, *draw.sizes(axes, 4, 8))!r}.double().requires_grad_()\n"
        + "output = nn.Sequential(*layers)(x)\n"
    )

    def check(names):
        layers, x = names["layers"], names["x"]
        assert len({id(layer.position) for layer in layers}) == 1
        assert len({id(layer.weight) for layer in layers}) == len(layers)
        twin = x.detach().clone().requires_grad_()
        expected = with_oracles(nn.Sequential(*layers))
        # the copies share too: the gradient of the first is the sum over all
        right = expected(twin)
        ours = [x, layers[0].position, layers[-1].weight]
        theirs = [twin, expected[0].layer.position, expected[-1].layer.weight]
        agree(names["output"], right, ours, theirs, (norm(x), 1.0), torch.float64)

    return Case("share", code, check)

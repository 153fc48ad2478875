"""Valid configurations: the code that makes them, and the oracle that each must agree with."""

import math
from collections.abc import Sequence

import torch
from tests.oracles import slow_convolution, slow_kernel
from tests.robustness.case import Case, Draw, Raw, call
from tests.tolerances import TOLERANCE, assert_close

from torchdcls import reference_kernel
from torchdcls.interpolation import INTERPOLATIONS, find_interpolation

BACKENDS = ("auto", "torch", "direct", "spectral", "mixed")
ANY = ("auto", "torch", "spectral")  # those that can do any convolution
# Where what was expected all but cancels, an error is measured by this share of the product of the norms.
CANCELLED = 1e-2


def interpolation(draw: Draw):
    """One of the library's, or the user's own."""
    return draw.choice([*(known.name for known in INTERPOLATIONS), Raw("own")])


def dtype(draw: Draw) -> Raw:
    """Single and double mostly, half sometimes."""
    return Raw(f"torch.{draw.choice(['float64'] * 4 + ['float32'] * 4 + ['float16', 'bfloat16'])}")


def backend(draw: Draw, kind: str, names: Sequence[str]) -> str:
    """One of the backends; in half precision never torch's as it stands, which some processors compute wrongly."""
    return draw.choice([name for name in names if name != "torch" or "16" not in kind])


def geometry(draw: Draw, axes: int, size: tuple[int, ...], plain: bool = False) -> tuple[dict, tuple[int, ...]]:
    """Stride, padding and padding mode for a kernel of a size, and a spatial shape that they fit; plain as torch's."""
    mode = draw.choice(["zeros", "zeros", "zeros", "reflect", "replicate", "circular"])
    kind = draw.choice(["same", "valid", "ints", "ints", "int"] if plain else ["same", "valid", "ints", "pairs", "int"])
    stride = (1,) * axes if kind == "same" or draw.maybe() else draw.sizes(axes, 1, 3)
    lowest = -1 if mode == "zeros" and not plain and draw.maybe(0.2) else 0
    pairs = [(draw.randint(lowest, k + 1), draw.randint(lowest, k + 1)) for k in size]
    if kind == "int":
        pairs = [(draw.randint(0, max(size)),) * 2] * axes
    elif kind == "ints":
        pairs = [(before, before) for before, _ in pairs]
    elif kind == "same":
        pairs = [((k - 1) // 2, k // 2) for k in size]
    elif kind == "valid":
        pairs = [(0, 0)] * axes
    spelled = {"int": pairs[0][0], "ints": [before for before, _ in pairs], "pairs": pairs}
    spatial = []
    for k, pair in zip(size, pairs, strict=True):
        fits = max(k - sum(pair), 1 - min(0, *pair), max(pair) + 1 if mode in ("reflect", "circular") else 1)
        spatial.append(fits + draw.choice([0, draw.randint(0, 3), draw.randint(0, (40, 12, 4)[axes - 1])]))
    arguments = {"stride": draw.spelled(stride), "padding": spelled.get(kind, kind), "padding_mode": mode}
    if isinstance(arguments["padding"], list) and draw.maybe():
        arguments["padding"] = tuple(arguments["padding"])
    return arguments, tuple(spatial)


def image(draw: Draw, channels: int, spatial: tuple[int, ...], dtype: str) -> str:
    """Code for an input: with a batch, without, or with an empty one; in any memory layout."""
    batch = draw.choice([(), (1,), (2,), (3,)])
    code = f"x = torch.randn{(*batch, channels, *spatial)!r}.to({dtype})\n"
    if batch and len(spatial) > 1 and draw.maybe(0.3):
        code += f"x = x.contiguous(memory_format=torch.channels_last{'_3d' * (len(spatial) == 3)})\n"
    elif draw.maybe(0.2):
        code += "x = x.mT.contiguous().mT\n" if len(spatial) > 1 else "x = torch.stack([x, x], -1)[..., 0]\n"
    return code


def agree(output, expected, ours, theirs, scales, dtype):
    """Compare values and, where the table of tolerances has an entry, gradients; a scale for each tensor."""
    scale = math.prod(scales[:2])
    assert output.dtype == dtype, f"result in {output.dtype}"
    assert_close(output, expected, "convolution", scale=CANCELLED * scale)
    if ("gradient", dtype) not in TOLERANCE:
        return
    direction = torch.randn(expected.shape, dtype=torch.float64).to(dtype)
    strength = direction.double().norm().item()
    actual = torch.autograd.grad(output, ours, direction, allow_unused=True)
    right = torch.autograd.grad(expected, theirs, direction.double(), allow_unused=True)
    for a, e, own in zip(actual, right, ours, strict=True):
        assert a is not None, "no gradient"
        assert a.dtype == own.dtype, f"gradient in {a.dtype}"
        e = torch.zeros_like(a, dtype=torch.float64) if e is None else e
        scale = strength * max(scales)
        assert_close(a, e, "gradient", dtype, scale=CANCELLED * scale)


def leaves(tensors):
    """Twins in float64 to differentiate by."""
    return [None if t is None else t.detach().double().requires_grad_() for t in tensors]


def norm(tensor) -> float:
    """The norm as a number, 1 at least."""
    return max(1.0, tensor.detach().double().norm().item())


def convolve_case(draw: Draw) -> Case:
    """`convolve` with each backend."""
    axes = draw.randint(1, 3)
    groups = draw.choice([1, 1, 2, 3, 4])
    inputs, outputs = draw.choice([(1, 1), (1, 1), (2, 1), (1, 2), (3, 2)])
    size = draw.sizes(axes, 1, (30, 9, 5)[axes - 1])
    arguments, spatial = geometry(draw, axes, size)
    strides = arguments["stride"]
    depthwise = inputs == outputs == 1 and axes < 3 and set([strides] if isinstance(strides, int) else strides) == {1}
    kind = dtype(draw)
    arguments |= {"groups": groups, "backend": backend(draw, kind, BACKENDS if depthwise else ANY)}
    bias = draw.maybe()
    code = (
        f"torch.manual_seed({draw.randrange(10**6)})\n"
        + image(draw, groups * inputs, spatial, kind)
        + f"kernel = torch.randn{(groups * outputs, inputs, *size)!r}.to({kind})\n"
        + f"bias = {f'torch.randn({groups * outputs}).to({kind})' if bias else None}\n"
        + "tensors = [t.requires_grad_() for t in (x, kernel, bias) if t is not None]\n"
        + f"output = convolve(x, kernel, bias, {call('', arguments)[1:-1]})"
    )

    def check(names):
        x, kernel, bias = twins = leaves((names["x"], names["kernel"], names["bias"]))
        expected = slow_convolution(
            x, kernel, bias, arguments["stride"], arguments["padding"], groups, arguments["padding_mode"]
        )
        used = [t for t in twins if t is not None]
        agree(names["output"], expected, names["tensors"], used, (norm(x), norm(kernel)), names["x"].dtype)

    return Case("convolve", code, check)


def conv_case(draw: Draw) -> Case:
    """`Conv1d/2d/3d` beside torch's own."""
    axes = draw.randint(1, 3)
    groups = draw.choice([1, 1, 2, 4])
    size = draw.sizes(axes, 1, (12, 6, 4)[axes - 1])
    dilation = (1,) * axes if draw.maybe(0.7) else draw.sizes(axes, 1, 3)
    extent = tuple(d * (k - 1) + 1 for d, k in zip(dilation, size, strict=True))
    arguments, spatial = geometry(draw, axes, extent, plain=True)
    kind = dtype(draw) if set(dilation) == {1} else Raw("torch.float64")  # with a dilation it is torch's own
    channels = groups * draw.randint(1, 3)
    arguments = {
        "in_channels": channels,
        "out_channels": groups * draw.randint(1, 3),
        "kernel_size": size,
        **arguments,
        "dilation": dilation,
        "groups": groups,
        "bias": draw.maybe(),
        "dtype": kind,
        "backend": "auto" if set(dilation) != {1} else backend(draw, kind, ANY),
    }
    code = (
        f"torch.manual_seed({draw.randrange(10**6)})\n"
        + f"layer = {call(f'Conv{axes}d', arguments)}\n"
        + image(draw, channels, spatial, kind)
        + "tensors = [x.requires_grad_(), *layer.parameters()]\n"
        + "output = layer(x)"
    )

    def check(names):
        layer = names["layer"]
        assert isinstance(layer, (torch.nn.Conv1d, torch.nn.Conv2d, torch.nn.Conv3d)[axes - 1])
        x, *parameters = twins = leaves(names["tensors"])
        kernel, bias = [*parameters, None][:2]
        options = (arguments[name] for name in ("stride", "padding", "groups", "padding_mode", "dilation"))
        expected = slow_convolution(x, kernel, bias, *options)
        agree(names["output"], expected, names["tensors"], twins, (norm(x), norm(kernel)), layer.weight.dtype)

    return Case("conv layers", code, check)


def elements(draw: Draw) -> str:
    """Code that moves the elements of a layer: near the middle, on taps, between them, out of the window."""
    where = draw.choice(["randn_like(p)", "randn_like(p) * 3", "randn_like(p) * 20", "randn_like(p).mul(2).round()"])
    width = draw.choice(["randn_like(s)", "zeros_like(s)", "rand_like(s) * 3"])
    return (
        f"p, s = layer.position, layer.sigma\np.data = torch.{where}\nif s is not None:\n    s.data = torch.{width}\n"
    )


def layer_arguments(draw: Draw, axes: int, kind: str) -> tuple[dict, tuple[int, ...]]:
    """Arguments of a Dcls layer, and a spatial shape that they fit."""
    groups = draw.choice([1, 1, 2, 3])
    size = draw.sizes(axes, 1, (25, 6, 4)[axes - 1])
    dense = draw.sample(range(axes), draw.choice([0, 0, 0, draw.randrange(axes)]))
    arguments, spatial = geometry(draw, axes, size)
    return {
        "in_channels": groups * draw.randint(1, 2),
        "out_channels": groups * draw.randint(1, 2),
        "kernel_count": draw.randint(1, 5),
        "dilated_kernel_size": draw.spelled(size),
        **arguments,
        "groups": groups,
        "bias": draw.maybe(),
        "interpolation": interpolation(draw),
        "dense_axes": tuple(dense) if draw.maybe() else dense,
        "dtype": kind,
        "backend": backend(draw, kind, ANY),
    }, spatial


def dcls_case(draw: Draw) -> Case:
    """`Dcls1d/2d/3d`, and what `to_conv` makes of them."""
    axes = draw.randint(1, 3)
    kind = dtype(draw)
    arguments, spatial = layer_arguments(draw, axes, kind)
    code = (
        f"torch.manual_seed({draw.randrange(10**6)})\n"
        + f"layer = {call(f'Dcls{axes}d', arguments)}\n"
        + elements(draw)
        + image(draw, arguments["in_channels"], spatial, kind)
        + "tensors = [x.requires_grad_(), *layer.parameters()]\n"
        + "output = layer(x)\n"
        + "conv = layer.to_conv()\n"
        + "fused = conv(x)"
    )
    return Case("Dcls layers", code, lambda names: agree_with_reference(names, arguments))


def agree_with_reference(names, arguments):
    """A layer, its kernel and its convolution beside the reference kernel and torch's convolution."""
    layer, x = names["layer"], names["x"]
    kernel = slow_kernel(layer)
    bias = None if layer.bias is None else layer.bias.double()
    twin = x.detach().double().requires_grad_()
    options = (arguments[name] for name in ("stride", "padding", "groups", "padding_mode"))
    expected = slow_convolution(twin, kernel, bias, *options)
    size, scales = norm(layer.weight), (norm(x), norm(layer.weight))
    assert_close(layer.dense_kernel(), kernel, "kernel", scale=CANCELLED * size)
    agree(names["output"], expected, names["tensors"], [twin, *layer.parameters()], scales, x.dtype)
    assert_close(names["fused"], expected, "convolution", scale=CANCELLED * math.prod(scales))
    assert set(names["conv"].state_dict()) <= {"weight", "bias"}


def from_conv_case(draw: Draw) -> Case:
    """`from_conv`: the shape, bias and settings of a convolution of torch's, in another layer."""
    axes = draw.randint(1, 3)
    groups = draw.choice([1, 2, 4])
    old, new = draw.sizes(axes, 1, 5), draw.sizes(axes, 1, (20, 7, 5)[axes - 1])
    dilation = (1,) * axes if draw.maybe() else draw.sizes(axes, 1, 3)
    extent = tuple(d * (k - 1) + 1 for d, k in zip(dilation, old, strict=True))
    settings, spatial = geometry(draw, axes, extent, plain=True)
    spatial = tuple(n + max(k, 1) for n, k in zip(spatial, new, strict=True))
    channels, kind = groups * draw.randint(1, 2), dtype(draw)
    conv = {
        "in_channels": channels,
        "out_channels": groups * draw.randint(1, 2),
        "kernel_size": old,
        **settings,
        "dilation": dilation,
        "groups": groups,
        "bias": draw.maybe(),
        "dtype": kind,
    }
    arguments = {
        "conv": Raw("conv"),
        "kernel_count": draw.randint(1, 4),
        "dilated_kernel_size": draw.spelled(new),
        "interpolation": interpolation(draw),
        "dense_axes": tuple(draw.sample(range(axes), draw.choice([0, 0, draw.randrange(axes)]))),
    }
    code = (
        f"torch.manual_seed({draw.randrange(10**6)})\n"
        + f"conv = {call(draw.choice(['nn.', '']) + f'Conv{axes}d', conv)}\n"
        + f"layer = {call(f'Dcls{axes}d.from_conv', arguments)}\n"
        + image(draw, channels, spatial, kind)
        + "stock = conv(x)\n"
        + "tensors = [x.requires_grad_(), *layer.parameters()]\n"
        + "output = layer(x)\n"
        + "conv = layer.to_conv()\n"
        + "fused = conv(x)"
    )

    def check(names):
        layer = names["layer"]
        assert names["output"].shape == names["stock"].shape
        options = {
            name: getattr(layer, name) for name in ("stride", "padding", "groups", "padding_mode", "in_channels")
        }
        agree_with_reference(names, options)

    return Case("from_conv", code, check)


def dense_kernel_case(draw: Draw) -> Case:
    """`dense_kernel` of one to four axes."""
    axes = draw.randint(1, 4)
    size = draw.sizes(axes, 1, (60, 9, 5, 3)[axes - 1])
    lead, count, kind = tuple(draw.sizes(draw.randrange(4), 1, 3)), draw.randint(1, 6), dtype(draw)
    name = interpolation(draw)
    has_width = name == Raw("own") or find_interpolation(str(name)).has_width
    spread = draw.choice([0.5, 2, 20])
    on_taps = ".round()" if draw.maybe(0.2) else ""
    sigma = f"torch.randn{(axes, *lead, count)!r}.to({kind})" if has_width else None
    code = (
        f"torch.manual_seed({draw.randrange(10**6)})\n"
        + f"weight = torch.randn{(*lead, count)!r}.to({kind})\n"
        + f"position = (torch.randn{(axes, *lead, count)!r} * {spread}){on_taps}.to({kind})\n"
        + f"sigma = {sigma}\n"
        + "tensors = [t.requires_grad_() for t in (weight, position, sigma) if t is not None]\n"
        + f"output = dense_kernel(weight, position, sigma, {draw.spelled(size)!r}, {name!r})"
    )

    def check(names):
        twins = leaves((names["weight"], names["position"], names["sigma"]))
        object = names["own"] if name == Raw("own") else str(name)
        expected = reference_kernel(*twins, size, object)
        used, scale = [t for t in twins if t is not None], norm(names["weight"])
        assert_close(names["output"], expected, "kernel", scale=CANCELLED * scale)
        agree(names["output"], expected, names["tensors"], used, (scale, 1.0), names["weight"].dtype)

    return Case("dense_kernel", code, check)

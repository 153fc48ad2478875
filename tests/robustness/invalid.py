"""Invalid configurations: valid ones with one argument spoilt, in every way that we could think of.

Each entry of a table is the wrong value, as code, and the names of which the message must hold one.
"""

from tests.robustness.case import Case, Draw, Raw, call

# Wrong for every whole number of at least 1, and for one that may be given for each axis.
NUMBER = ["0", "-2", "1.5", "'3'", "None", "True", "float('nan')", "torch.tensor(2)", "[]", "(1, 1, 1, 1)"]
NAME = ["'gaus'", "''", "None", "3", "[]", "torch.sinc", "b'gauss'"]
TENSOR = ["None", "3.0", "[1.0, 2.0]", "{x}.numpy()", "{x}.int()", "{x}.bool()", "{x}.to(torch.complex64)"]


def spoil(family: str, draw: Draw, function: str, arguments: dict, table: dict, before: str = "", after: str = ""):
    """A case with one argument of a call replaced by a wrong value of the table."""
    name = draw.choice(list(table))
    values, *also = table[name] if isinstance(table[name], tuple) else (table[name],)
    wrong = draw.choice(values).replace("{x}", str(arguments.get(name, name)))
    code = before + call(function, arguments | {name: Raw(wrong)}) + after
    return Case(family, code, clear=(name, *also))


def per_axis(axes: int) -> list[str]:
    """Wrong for an int or a tuple of ints, one for each axis."""
    wrong = [*NUMBER, repr((2,) * (axes + 1)), repr((2,) * (axes - 1) + (0,)), repr((2,) * (axes - 1) + (1.0,))]
    return [*wrong, repr((2,) * (axes - 1) + ("2",)), repr((2,) * (axes - 1) + (None,)), repr([[2]] * axes), "object()"]


def paddings(axes: int) -> list[str]:
    """Wrong for a padding."""
    wrong = ["'full'", "''", "None", "1.5", "True", "object()", "{0: 1}", "float('nan')", repr((1,) * (axes + 1)), "()"]
    return wrong + [repr((entry,) * axes) for entry in (1.0, "1", None, (1,), (1, 1, 1), (1, 1.5), (1, None), True)]


def layer(draw: Draw) -> Case:
    """Arguments of a Dcls layer."""
    axes = draw.randint(1, 3)
    valid = {
        "in_channels": 4,
        "out_channels": 6,
        "kernel_count": 3,
        "dilated_kernel_size": 5,
        "stride": 1,
        "padding": 0,
        "groups": 2,
        "padding_mode": "zeros",
        "interpolation": "gauss",
        "dense_axes": (),
        "backend": "auto",
    }
    table = {
        "in_channels": [*NUMBER, "5"],
        "out_channels": [*NUMBER, "5"],
        "kernel_count": [*NUMBER, "(2, 2)"],
        "dilated_kernel_size": per_axis(axes),
        "stride": per_axis(axes),
        "padding": paddings(axes),
        "groups": ([*NUMBER, "3", "4", "12"], "in_channels", "out_channels"),
        "padding_mode": NAME,
        "interpolation": NAME,
        "dense_axes": [
            f"({axes},)",
            "(-1,)",
            "(0, 0)",
            repr(tuple(range(axes))),
            "0",
            "None",
            "'0'",
            "(None,)",
            "(0.0,)",
        ],
        "dtype": ["torch.int32", "torch.complex64", "'float32'", "torch.bool", "3"],
        "backend": [*NAME, "'fft'"],
    }
    return spoil("Dcls layers", draw, f"Dcls{axes}d", valid, table)


def from_conv(draw: Draw) -> Case:
    """Arguments of `from_conv`."""
    axes = draw.randint(1, 3)
    other = axes % 3 + 1
    conv = f"nn.Conv{axes}d(4, 4, 3, groups=2)"
    valid = {"conv": Raw(conv), "kernel_count": 3, "dilated_kernel_size": 5, "interpolation": "gauss", "dense_axes": ()}
    wrong = [
        f"nn.Conv{other}d(4, 4, 3)",
        "nn.Linear(4, 4)",
        "None",
        f"nn.ConvTranspose{axes}d(4, 4, 3)",
        "torch.ones(3)",
    ]
    table = {
        "conv": [*wrong, f"nn.LazyConv{axes}d(4, 3)", f"Dcls{axes}d(4, 4, 3, 5)", f"nn.Conv{axes}d"],
        "kernel_count": NUMBER,
        "dilated_kernel_size": per_axis(axes),
        "interpolation": NAME,
        "dense_axes": [f"({axes},)", "(-1,)", "(0, 0)", "0", "None"],
    }
    return spoil("from_conv", draw, f"Dcls{axes}d.from_conv", valid, table)


def dense_kernel(draw: Draw) -> Case:
    """Arguments of `dense_kernel`, tensors among them."""
    axes = draw.randint(1, 3)
    shape = (axes, 4, 2, 3)
    before = f"weight = torch.randn{shape[1:]}\nposition, sigma = torch.randn{shape}, torch.rand{shape}\n"
    valid = {name: Raw(name) for name in ("weight", "position", "sigma")} | {
        "size": (5,) * axes,
        "interpolation": "gauss",
    }
    placed = [*TENSOR, "{x}[..., :2]", "{x}[:, 0]", "{x}[0]", "{x}.unsqueeze(0)", "{x}.double()", "{x}.half()"]
    placed += ["{x} * float('nan')", "{x} / 0", "{x}.index_fill(0, torch.tensor(0), float('inf'))"]
    sizes = [value for value in per_axis(axes) if value != "torch.tensor(2)"]
    table = {
        "weight": ([*TENSOR, "{x}[..., :0]", "{x}[0, 0, 0]", "{x}.half()", "{x}[0]", "{x}[..., :2]"], "position"),
        "position": placed,
        "sigma": [value for value in placed if value != "3.0"],
        "size": ([*sizes, repr((5,) * (axes + 1))], "position"),
        "interpolation": ([*NAME, "'bilinear'", "'sinc'"], "sigma"),
    }
    return spoil("dense_kernel", draw, "dense_kernel", valid, table, before)


def convolve(draw: Draw) -> Case:
    """Arguments of `convolve`, or of an input for a layer."""
    axes = draw.randint(1, 3)
    spatial = (8,) * axes
    before = f"input, kernel, bias = torch.randn{(2, 4, *spatial)}, torch.randn{(6, 2, *(3,) * axes)}, torch.randn(6)\n"
    valid = {name: Raw(name) for name in ("input", "kernel", "bias")}
    valid |= {"stride": 1, "padding": 1, "groups": 2, "padding_mode": "zeros", "backend": "auto"}
    inputs = [*TENSOR, "{x}[:, :3]", "{x}[0, 0]", "{x}[None]", "{x}.double()", "{x}.half()", "{x}[..., :0]"]
    inputs += ["{x}[:, :0]", "torch.tensor(1.0)"]
    kernels = [*TENSOR, "{x}[0]", "{x}[:, :1]", "{x}[:5]", "{x}[None, None]", "{x}.double()", "{x}[..., :0]", "{x}[:0]"]
    table = {
        "input": (inputs, "kernel"),
        "kernel": (kernels, "input", "bias"),
        "bias": [*TENSOR[1:4], "{x}[:5]", "{x}[None]", "{x}.int()", "{x}.to(torch.complex64)", "{x}.double()"],
        "stride": per_axis(axes),
        "padding": ([*paddings(axes), "-5"], "input"),
        "groups": ([*NUMBER, "3", "4"], "input", "kernel"),
        "padding_mode": NAME,
        "backend": [*NAME, "'direct'", "'mixed'"],
    }
    return spoil("convolve", draw, "convolve", valid, table, before)


def padding_too_wide(draw: Draw) -> Case:
    """Padding modes that need more of the input than there is."""
    axes = draw.randint(1, 3)
    mode = draw.choice(["reflect", "circular"])
    size = 3 if mode == "reflect" else 2
    code = f"input, kernel = torch.randn{(1, 2, *(size,) * axes)}, torch.randn{(2, 2, *(2,) * axes)}\n"
    arguments = {"padding": size if draw.maybe() else ((0, size + 1),) * axes, "padding_mode": mode}
    if mode == "circular":
        arguments["padding"] = size + 1
    if draw.maybe():
        code += f"convolve(input, kernel, {call('', arguments)[1:-1]})"
    else:
        dcls = {"in_channels": 2, "out_channels": 2, "kernel_count": 1, "dilated_kernel_size": 2} | arguments
        code += f"{call(f'Dcls{axes}d', dcls)}(input)"
    return Case("padding modes", code, clear=("padding", "input"))


def convert(draw: Draw) -> Case:
    """Arguments of `to_dcls`, `matching_kernel_count` and `fuse`."""
    axes = draw.randint(1, 3)
    before = (
        "def block():\n"
        f"    return nn.Sequential(nn.Conv{axes}d(4, 4, 3, padding=1, groups=4), nn.Conv{axes}d(4, 4, 1))\n"
        "model = nn.Sequential(block(), block())\n"
    )
    function = draw.choice(["to_dcls", "to_dcls", "matching_kernel_count", "fuse"])
    models = ["None", "'model'", "model[0][0]", "nn.Linear(4, 4)", "nn.Sequential()", "[model]", "nn.Module"]
    models += [f"nn.Sequential(nn.Conv{axes}d(4, 4, 3))"]
    if function == "fuse":
        return spoil("fuse", draw, "fuse", {"model": Raw("model")}, {"model": [*models, "model"]}, before)
    valid = {"model": Raw("model"), "interpolation": "gauss", "where": Raw("is_depthwise"), "share": "stage"}
    table = {
        "model": (models if function == "to_dcls" else [m for m in models if m != "model[0][0]"], "where"),
        "interpolation": NAME,
        "where": ["None", "'dwconv'", "lambda name, module: False", "3", "['0.0']"],
        "share": ["'model'", "''", "3", "True", "['stage']"],
    }
    if function == "to_dcls":
        valid |= {"kernel_count": 2, "dilated_kernel_size": 5, "start": "random"}
        table |= {
            "kernel_count": NUMBER,
            "dilated_kernel_size": per_axis(axes),
            "start": ["'best'", "None", "''", "True", "[]"],
        }
    return spoil(function, draw, function, valid, table, before)


def share(draw: Draw) -> Case:
    """Layers that cannot share, and what is no layer."""
    wrong = ["[]", "None", "[None]", "Dcls2d(4, 4, 3, 5)", "['layer']", "[nn.Conv2d(4, 4, 3)]", "3", "nn.Linear(1, 1)"]
    first = "Dcls2d(4, 4, 3, 5)"
    others = ["Dcls2d(8, 4, 3, 5)", "Dcls1d(4, 4, 3, 5)", "Dcls2d(4, 4, 2, 5)", "nn.ReLU()", "None"]
    others += ["Dcls2d(4, 4, 3, 5, interpolation='sinc')", "Dcls2d(4, 4, 3, 5, interpolation='lorentz')"]
    wrong += [f"[{first}, {other}]" for other in others]
    return Case("share", f"share_positions({draw.choice(wrong)})", clear=("layers",))


def groups(draw: Draw) -> Case:
    """Settings of `parameter_groups` and what surrounds it."""
    valid = {"model": Raw("model"), "lr": 0.1, "weight_decay": 0.05, "position_lr_scale": 5.0}
    numbers = ["-1.0", "float('nan')", "None", "'0.1'", "[]", "-1", "1j"]
    models = ["None", "'model'", "[model]", "nn.Linear"]
    table = {"model": models, "lr": numbers, "weight_decay": numbers, "position_lr_scale": numbers}
    before = "model = Dcls1d(4, 4, 3, 5)\n"
    function = draw.choice(["parameter_groups"] * 3 + ["repulsion_loss", "clamp_positions_"])
    if function == "parameter_groups":
        return spoil(function, draw, function, valid, table, before)
    models += ["nn.Linear(2, 2)"] * (function == "repulsion_loss")
    return spoil(function, draw, function, {"model": Raw("model")}, {"model": models}, before)


def interpolation(draw: Draw) -> Case:
    """Fields of an interpolation of the user's own."""
    valid = {"name": "mine", "profile": Raw("torch.sinc"), "minimum_width": 0.3, "initial_sigma": 0.2}
    numbers = ["-1.0", "float('nan')", "float('inf')", "None", "'0.3'", "[]"]
    table = {
        "name": ["3", "None", "''"],
        "profile": ["None", "'gauss'", "3"],
        "minimum_width": (numbers, "initial_sigma"),
        "initial_sigma": (numbers, "minimum_width"),
    }
    return spoil("Interpolation", draw, "Interpolation", valid, table)


def forward(draw: Draw) -> Case:
    """Inputs of layers, and parameters that have gone bad."""
    axes = draw.randint(1, 3)
    kind, more = draw.choice([("Dcls", ", 3, 5"), ("Conv", ", 5")])
    code = f"layer, input = {kind}{axes}d(4, 6{more}, groups=2), torch.randn{(2, 4, *(8,) * axes)}\n"
    broken = ["layer.position.data[...] = float('nan')\n", "layer.sigma.data[0] = float('inf')\n"]
    if kind == "Dcls" and draw.maybe(0.3):
        return Case("forward", code + draw.choice(broken) + "layer(input)", clear=("position", "sigma"))
    wrong = ["input[:, :3]", "input[0, 0]", "input[None]", "input.double()", "input.int()", "input[..., :3]", "None"]
    return Case("forward", f"{code}layer({draw.choice([*wrong, 'input.tolist()', 'input.numpy()'])})", clear=("input",))


FAMILIES = {
    layer: 24,
    from_conv: 8,
    dense_kernel: 14,
    convolve: 18,
    padding_too_wide: 4,
    convert: 14,
    share: 4,
    groups: 6,
    interpolation: 4,
    forward: 6,
}


def invalid_case(draw: Draw) -> Case:
    """One of them."""
    return draw.choices(list(FAMILIES), list(FAMILIES.values()))[0](draw)

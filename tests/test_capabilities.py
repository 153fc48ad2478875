"""What works with which layer: every cell of the table in docs/capabilities.md is a test here.

`python -m tests.test_capabilities` writes the table anew from the rows below.
"""

import copy
import functools
import io
import pickle
import re
import warnings
from pathlib import Path

import onnxruntime
import pytest
import torch
from safetensors.torch import load_model, save_model
from tests.tolerances import assert_close
from tests.two_processes import on_two_processes
from torch import nn
from torch.distributed.fsdp import fully_shard

from torchdcls import Conv1d, Conv2d, Conv3d, Dcls1d, Dcls2d, Dcls3d
from torchdcls.interpolation import INTERPOLATIONS
from torchdcls.layers import DclsNd

LAYERS = {layer.__name__: layer for layer in (Dcls1d, Dcls2d, Dcls3d, Conv1d, Conv2d, Conv3d)}
ROWS = {}  # name -> (what is promised, the test)
PAGE = Path(__file__).parent.parent / "docs" / "capabilities.md"


def row(name, promise):
    """Register a test as the row ``name`` of the table; it is called with the name of each layer."""

    def register(test):
        ROWS[name] = (promise, test)
        return test

    return register


def axes_of(name):
    return int(name[-2])


def make(name, interpolation="gauss", **arguments):
    """A layer with groups, an odd number of outputs a group, and padding."""
    torch.manual_seed(0)
    if name.startswith("Conv"):
        return LAYERS[name](4, 6, 5, padding=2, groups=2, **arguments)
    return LAYERS[name](4, 6, 3, 5, padding="same", groups=2, interpolation=interpolation, **arguments)


def variants(name):
    """The layer with every interpolation and with dense axes, for tests that are quick."""
    if name.startswith("Conv"):
        return [make(name), make(name, bias=False, stride=2)]
    dense = [make(name, dense_axes=range(axes_of(name) - 1))] if axes_of(name) > 1 else []
    return [*(make(name, i.name) for i in INTERPOLATIONS), *dense]


def draw_input(name, batch=2, dtype=torch.float32):
    return torch.randn(batch, 4, *[7, 6, 8][: axes_of(name)], generator=torch.Generator().manual_seed(1)).to(dtype)


def gradients(layer, output):
    """Of all parameters, for a loss that is not linear in the output."""
    layer.zero_grad()
    output.float().square().sum().backward()
    return {name: parameter.grad.clone() for name, parameter in layer.named_parameters()}


def assert_gradients_close(actual, expected):
    assert actual.keys() == expected.keys()
    for name, gradient in expected.items():
        assert_close(actual[name], gradient, "gradient")


def assert_compiles(name, backend, batches):
    torch.compiler.reset()
    layer = make(name)
    compiled = torch.compile(layer, fullgraph=True, backend=backend)
    for batch in batches:
        x = draw_input(name, batch)
        with torch.compiler.set_stance("fail_on_recompile" if batch == 5 else "default"):
            output = compiled(x)
            found = gradients(layer, output)
        expected = layer(x)
        assert_close(output, expected, "convolution")
        assert_gradients_close(found, gradients(layer, expected))


@row("`torch.compile`", "one graph without breaks; outputs and gradients; a new batch size costs one recompilation")
def compiles_whole(name):
    # The second batch makes the graph dynamic, the third must do without a new one.
    assert_compiles(name, "aot_eager", batches=(2, 3, 5))


@row("`torch.export`", "a graph of torch's own operations alone, for any batch size")
def exports(name):
    layer = make(name).eval()
    exported = torch.export.export(layer, (draw_input(name),), dynamic_shapes=({0: torch.export.Dim.AUTO},))
    called = {str(node.target) for node in exported.graph.nodes if node.op == "call_function"}
    assert not [target for target in called if "torchdcls" in target]
    for batch in (1, 3):
        x = draw_input(name, batch)
        assert_close(exported.module()(x), layer(x), "convolution")


@row("ONNX", "the file gives the same outputs in onnxruntime, for any batch size")
def exports_to_onnx(name):
    layer, file = make(name).eval(), io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's exporter warns of its own parts
        program = torch.onnx.export(
            layer, (draw_input(name),), dynamic_shapes=({0: "batch"},), dynamo=True, verbose=False
        )
        program.save(file)
    session = onnxruntime.InferenceSession(file.getvalue())
    for batch in (1, 3):
        x = draw_input(name, batch)
        (output,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
        assert_close(torch.from_numpy(output), layer(x), "convolution")


def assert_autocasts(name, dtype):
    for layer in variants(name):
        x = draw_input(name)
        expected = layer(x)
        kernel = layer.dense_kernel() if isinstance(layer, DclsNd) else layer.weight
        with torch.autocast("cpu", dtype=dtype):
            output = layer(x)
            assert layer(x.to(dtype)).dtype == dtype
            assert_close(layer.dense_kernel() if isinstance(layer, DclsNd) else layer.weight, kernel, "kernel")
        assert output.dtype == dtype
        assert_close(output, expected, "convolution")
        for gradient in gradients(layer, output).values():
            assert gradient.dtype == torch.float32
            assert gradient.isfinite().all()


@row("autocast to bfloat16", "outputs in bfloat16, kernels built in float32, gradients in float32")
def autocasts_to_bfloat16(name):
    assert_autocasts(name, torch.bfloat16)


@row("autocast to float16", "outputs in float16, kernels built in float32, gradients in float32")
def autocasts_to_float16(name):
    assert_autocasts(name, torch.float16)


def assert_computes_in(name, dtype):
    for layer in variants(name):
        layer = layer.to(dtype)
        x = draw_input(name, dtype=dtype)
        exact = copy.deepcopy(layer).double()(x.double())
        output = layer(x)
        assert output.dtype == dtype
        assert_close(output, exact, "convolution")
        assert all(g.dtype == dtype and g.isfinite().all() for g in gradients(layer, output).values())
        if isinstance(layer, DclsNd):
            assert layer.to_conv().weight.dtype == dtype


@row("bfloat16 parameters", "as near to the float64 result as bfloat16 allows; gradients in bfloat16")
def computes_in_bfloat16(name):
    assert_computes_in(name, torch.bfloat16)


@row("float16 parameters", "as near to the float64 result as float16 allows; gradients in float16")
def computes_in_float16(name):
    assert_computes_in(name, torch.float16)


@row("DDP", "two processes have the gradients of one with the whole batch")
def trains_in_two_processes(name):
    assert_gradients_close(gradients_of_two_processes()[name, "DDP"], gradients_of_one_process(name))


@row("FSDP2", "two processes that hold half of every parameter each have the gradients of one")
def trains_sharded(name):
    assert_gradients_close(gradients_of_two_processes()[name, "FSDP2"], gradients_of_one_process(name))


def gradients_of_one_process(name):
    layer = make(name)
    layer(draw_input(name, batch=4)).square().mean().backward()
    return {parameter: value.grad for parameter, value in layer.named_parameters()}


@functools.cache
def gradients_of_two_processes():
    """Of all layers, (name, way) -> gradients: processes take seconds to start, so two of them do everything."""
    return on_two_processes(gradients_of_halves)


def gradients_of_halves(rank):
    mesh = torch.distributed.init_device_mesh("cpu", (2,))
    found = {}
    for name in LAYERS:
        half = draw_input(name, batch=4)[2 * rank : 2 * rank + 2]
        for way in ("DDP", "FSDP2"):
            layer = make(name)
            parallel = nn.parallel.DistributedDataParallel(layer) if way == "DDP" else fully_shard(layer, mesh=mesh)
            parallel(half).square().mean().backward()
            whole = (lambda g: g) if way == "DDP" else (lambda g: g.full_tensor())
            found[name, way] = {n: whole(p.grad) for n, p in layer.named_parameters()}
    return found


def assert_same_but_apart(layer, twin, x):
    """The twin computes the same and does not follow when the original changes."""
    expected = layer(x)
    assert torch.equal(twin(x), expected)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.add_(0.25)
    assert torch.equal(twin(x), expected)
    assert not torch.equal(layer(x), expected)


@row("`copy.deepcopy`", "computes the same, shares nothing")
def copies(name):
    for layer in variants(name):
        assert_same_but_apart(layer, copy.deepcopy(layer), draw_input(name))


@row("`pickle`, `torch.save`", "whole layers and state dicts; the latter load with `weights_only=True`")
def pickles(name):
    for layer in variants(name):
        assert_same_but_apart(layer, pickle.loads(pickle.dumps(layer)), draw_input(name))
        assert_same_but_apart(layer, saved(layer, weights_only=False), draw_input(name))
        twin = copy.deepcopy(layer)
        twin.reset_parameters()
        twin.load_state_dict(saved(layer.state_dict(), weights_only=True))
        assert_same_but_apart(layer, twin, draw_input(name))


def saved(what, weights_only):
    buffer = io.BytesIO()
    torch.save(what, buffer)
    buffer.seek(0)
    return torch.load(buffer, weights_only=weights_only)


@row("safetensors", "`save_model` and `load_model` go round")
def goes_round_in_safetensors(name, folder):
    for layer in variants(name):
        twin = copy.deepcopy(layer)
        twin.reset_parameters()
        save_model(layer, str(folder / "layer.safetensors"))
        load_model(twin, str(folder / "layer.safetensors"))
        assert_same_but_apart(layer, twin, draw_input(name))


@row("meta device", "shapes without data; `to_empty` and a state dict make it real")
def lives_on_meta(name):
    for layer in variants(name):
        x = draw_input(name)
        on_meta = copy.deepcopy(layer).to("meta")
        assert on_meta(x.to("meta")).shape == layer(x).shape
        real = on_meta.to_empty(device="cpu")
        real.load_state_dict(layer.state_dict())
        assert_same_but_apart(layer, real, x)
    with torch.device("meta"):
        assert all(parameter.is_meta for parameter in make(name).parameters())


@row("`torch.func`", "`functional_call`; `vmap` of `grad` gives the gradients of each sample")
def can_be_transformed(name):
    for layer in variants(name):
        x = draw_input(name)
        parameters = {k: v.detach().clone() for k, v in layer.named_parameters()}
        assert torch.equal(torch.func.functional_call(layer, parameters, (x,)), layer(x))

        def loss(parameters, sample, layer=layer):
            return torch.func.functional_call(layer, parameters, (sample,)).square().sum()

        each = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))(parameters, x)
        for index, sample in enumerate(x):
            expected = gradients(layer, layer(sample))
            assert_gradients_close({k: v[index] for k, v in each.items()}, expected)


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("capability", ROWS)
def test_cell(capability, name, tmp_path):
    _, test = ROWS[capability]
    test(name, tmp_path) if test is goes_round_in_safetensors else test(name)


def test_inductor_compiles_what_traces():
    assert_compiles("Dcls2d", "inductor", batches=(2,))


def table():
    """The rows as they stand in the page."""
    header = ["", *(f"`{name}`" for name in LAYERS), "what is tested"]
    lines = [header, [":---", *[":---:"] * len(LAYERS), ":---"]]
    lines += [[name, *["✓"] * len(LAYERS), promise] for name, (promise, _) in ROWS.items()]
    return "\n".join(f"| {' | '.join(cells)} |".replace("|  |", "| |") for cells in lines)


_TABLE = re.compile(r"(<!-- capabilities -->\n).*?(\n<!-- end -->)", re.DOTALL)


def test_the_page_has_this_table():
    assert _TABLE.search(PAGE.read_text())[0] == f"<!-- capabilities -->\n{table()}\n<!-- end -->", (
        "run `python -m tests.test_capabilities`"
    )


if __name__ == "__main__":
    PAGE.write_text(_TABLE.sub(lambda found: found[1] + table() + found[2], PAGE.read_text()))

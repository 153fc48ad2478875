"""What differs on a GPU: run wherever there is one, `python -m pytest tests/test_cuda.py`."""

import copy

import pytest
import torch
import torch.nn.functional as F
from tests.tolerances import assert_close, relative_error
from torch import nn

from torchdcls import Dcls1d, Dcls2d, Dcls3d, convolve, dense_kernel, fuse, parameter_groups, to_dcls
from torchdcls.interpolation import INTERPOLATIONS

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

CONVOLUTIONS = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}
PROBLEMS = {
    # input, kernel, groups, stride
    "1-D": ((4, 8, 500), (8, 1, 101), 8, 1),
    "1-D dense": ((4, 24, 124), (32, 24, 25), 1, 1),
    "2-D": ((4, 16, 56, 56), (16, 1, 23, 23), 16, 1),
    "2-D cut": ((4, 16, 7, 7), (16, 1, 23, 23), 16, 1),
    "2-D stride": ((4, 16, 28, 28), (16, 1, 7, 7), 16, 2),
    "2-D grouped": ((4, 16, 28, 28), (32, 4, 11, 11), 4, 1),
    "3-D": ((2, 8, 8, 16, 16), (8, 1, 7, 11, 11), 8, 1),
}


@pytest.fixture(autouse=True)
def _exact():
    tf32 = torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
    yield
    torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32 = tf32


@pytest.mark.parametrize("backend", ["auto", "torch", "spectral"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("problem", PROBLEMS.values(), ids=PROBLEMS)
def test_convolution_equals_torchs_on_the_cpu(problem, dtype, backend):
    shape, kernel_shape, groups, stride = problem
    padding = [k // 2 for k in kernel_shape[2:]]
    exact = [torch.randn(s, dtype=torch.float64) for s in (shape, kernel_shape, kernel_shape[:1])]
    exact = [tensor.to(dtype).double().requires_grad_() for tensor in exact]
    ours = [tensor.detach().to("cuda", dtype).requires_grad_() for tensor in exact]
    expected = CONVOLUTIONS[len(padding)](*exact, stride, padding, 1, groups)
    output = convolve(*ours, stride, tuple(padding), groups, backend=backend)
    assert output.device.type == "cuda"
    direction = torch.randn_like(expected).to(dtype)
    quantity = "convolution" if dtype in (torch.float64, torch.bfloat16, torch.float16) else "gradient"
    assert_close(output.cpu(), expected, quantity, dtype)
    theirs = torch.autograd.grad(expected, exact, direction.double())
    for a, b in zip(torch.autograd.grad(output, ours, direction.cuda()), theirs, strict=True):
        assert_close(a.cpu(), b, quantity, dtype)


def test_spectral_refuses_nothing_and_direct_everything():
    x, kernel = torch.randn(1, 4, 8, 8, device="cuda"), torch.randn(4, 1, 3, 3, device="cuda")
    with pytest.raises(ValueError, match="torch has no faster form on cuda"):
        convolve(x, kernel, groups=4, backend="direct")


@pytest.mark.parametrize("interpolation", [i.name for i in INTERPOLATIONS])
def test_kernels_equal_those_on_the_cpu(interpolation):
    layer = Dcls3d(2, 2, 4, (3, 5, 7), interpolation=interpolation)
    copied = copy.deepcopy(layer).cuda()
    assert_close(copied.dense_kernel().cpu(), layer.dense_kernel(), "kernel")
    direction = torch.randn(2, 2, 3, 5, 7)
    (layer.dense_kernel() * direction).sum().backward()
    (copied.dense_kernel() * direction.cuda()).sum().backward()
    for (_, ours), (_, theirs) in zip(copied.named_parameters(), layer.named_parameters(), strict=True):
        if theirs.grad is not None:
            assert_close(ours.grad.cpu(), theirs.grad, "gradient")


def test_made_on_the_device_and_moved_about():
    layer = Dcls1d(4, 4, 3, 25, padding="same", device="cuda", dtype=torch.bfloat16)
    assert {parameter.device.type for parameter in layer.parameters()} == {"cuda"}
    x = torch.randn(2, 4, 50, device="cuda", dtype=torch.bfloat16)
    assert layer(x).dtype == torch.bfloat16
    assert layer.cpu()(x.cpu()).device.type == "cpu"
    assert layer.cuda()(x).device.type == "cuda"


def test_a_training_step_does_not_wait_for_the_device():
    layer = Dcls2d(16, 16, 5, 23, padding="same", groups=16, device="cuda")
    x = torch.randn(2, 16, 28, 28, device="cuda")
    layer(x).sum().backward()  # makes plans of transforms
    torch.cuda.set_sync_debug_mode("error")
    try:
        layer(x).sum().backward()
        dense_kernel(layer.weight, layer.position, layer.sigma, 23)
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_autocast_and_channels_last():
    layer = Dcls2d(16, 16, 5, 23, padding="same", groups=16).cuda()
    x = torch.randn(2, 16, 28, 28, device="cuda").contiguous(memory_format=torch.channels_last)
    with torch.autocast("cuda", dtype=torch.bfloat16):
        output = layer(x)
    assert output.dtype == torch.bfloat16
    assert relative_error(output, layer(x)) < 0.04
    assert layer(x).is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("backend", ["torch", "spectral"])
def test_compiles_whole(backend):
    layer = Dcls2d(8, 8, 5, 23, padding="same", groups=8, backend=backend).cuda()
    x = torch.randn(2, 8, 28, 28, device="cuda")
    compiled = torch.compile(layer, fullgraph=True)
    assert_close(compiled(x), layer(x), "gradient")
    ours, theirs = (torch.autograd.grad(f(x).square().sum(), list(layer.parameters())) for f in (compiled, layer))
    for a, b in zip(ours, theirs, strict=True):
        assert relative_error(a, b) < 1e-3


def test_a_network_converts_fits_trains_and_fuses():
    model = nn.Sequential(
        *(nn.Sequential(nn.Conv2d(8, 8, 7, padding=3, groups=8), nn.Conv2d(8, 8, 1), nn.GELU()) for _ in range(2))
    ).cuda()
    x = torch.randn(2, 8, 28, 28, device="cuda")
    expected = model(x)
    report = to_dcls(model, 49, 17, "triangle", start="fit")
    assert max(row.error for row in report) < 1e-6
    assert_close(model(x), expected, "gradient")
    optimizer = torch.optim.AdamW(parameter_groups(model, lr=1e-3, weight_decay=0.05), fused=True)
    model(x).square().mean().backward()
    optimizer.step()
    trained = model(x)
    assert_close(fuse(model)(x), trained, "gradient")

import copy
import io

import pytest
import timm
import torch
from safetensors.torch import load_model, save_model
from tests.tolerances import assert_close
from tests.two_processes import on_two_processes
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.checkpoint import checkpoint_sequential

from torchdcls import Dcls1d, Dcls2d, share_positions, shared_profiles, to_dcls
from torchdcls.layers import SHARED
from torchdcls.sharing import sharing_groups, stage_of


def network(interpolation="gauss"):
    """Two stages of two blocks each; positions are shared within a stage."""
    torch.manual_seed(0)

    def block(channels):
        depthwise = nn.Conv2d(channels, channels, 5, padding=2, groups=channels)
        return nn.Sequential(depthwise, nn.Conv2d(channels, channels, 1), nn.GELU())

    stages = [nn.Sequential(block(c), block(c)) for c in (4, 8)]
    model = nn.Sequential(nn.Sequential(nn.Conv2d(3, 4, 1)), stages[0], nn.Sequential(nn.Conv2d(4, 8, 1)), stages[1])
    to_dcls(model, kernel_count=4, dilated_kernel_size=9, interpolation=interpolation)
    return model


def layers(model):
    return [module for module in model.modules() if isinstance(module, Dcls2d)]


def is_shared(model):
    a, b, c, d = layers(model)
    return (
        a.position is b.position
        and a.sigma is b.sigma
        and c.position is d.position
        and c.sigma is d.sigma
        and a.position is not c.position
        and a.weight is not b.weight
    )


def output(model):
    return model(torch.randn(2, 3, 12, 12, generator=torch.Generator().manual_seed(1)))


def test_sharing_is_one_parameter_with_the_sum_of_the_gradients():
    model = network()
    assert is_shared(model)
    output(model).square().sum().backward()
    gradient = layers(model)[0].position.grad
    apart = network()
    for module in layers(apart):
        module.position = nn.Parameter(module.position.detach().clone())
    output(apart).square().sum().backward()
    first, second, *_ = layers(apart)
    assert_close(gradient, first.position.grad + second.position.grad, "gradient")


SURVIVALS = {
    "deepcopy": copy.deepcopy,
    "to": lambda model: model.to(torch.float64).to(torch.float32),
    "half": lambda model: model.half().float(),
    "save": lambda model: _saved(model),
    "share_memory": lambda model: model.share_memory(),
    "requires_grad": lambda model: model.requires_grad_(False).requires_grad_(True),
    "averaged": lambda model: torch.optim.swa_utils.AveragedModel(model).module,
}


def _saved(model):
    buffer = io.BytesIO()
    torch.save(model, buffer)
    buffer.seek(0)
    return torch.load(buffer, weights_only=False)


@pytest.mark.parametrize("survive", SURVIVALS.values(), ids=SURVIVALS)
def test_sharing_survives(survive):
    model = survive(network())
    assert is_shared(model)
    with torch.no_grad():
        layers(model)[0].position.add_(1)
    assert torch.equal(layers(model)[0].position, layers(model)[1].position)


def test_state_dicts_go_round():
    model, other = network(), network()
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.normal_()
    other.load_state_dict(model.state_dict())
    assert is_shared(other)
    assert torch.equal(output(other), output(model))


def test_safetensors_go_round(tmp_path):
    model, other = network(), network()
    nn.init.normal_(layers(other)[0].position)
    save_model(model, str(tmp_path / "model.safetensors"))
    load_model(other, str(tmp_path / "model.safetensors"))
    assert is_shared(other)
    assert torch.equal(output(other), output(model))


def test_an_average_moves_a_shared_parameter_once():
    model = network()
    average = torch.optim.swa_utils.AveragedModel(
        model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(decay=0.75)
    )
    average.update_parameters(model)  # the first update copies
    before = layers(model)[0].position.detach().clone()
    with torch.no_grad():
        layers(model)[0].position.add_(4)
    average.update_parameters(model)
    assert_close(layers(average.module)[0].position, before + 1, "kernel")


def test_a_model_from_the_meta_device_shares_again():
    with torch.device("meta"):
        model = network()
    assert is_shared(model)
    model = model.to_empty(device="cpu")
    a, b, c, d = layers(model)
    share_positions([a, b])
    share_positions([c, d])
    assert is_shared(model)


def test_compiles_whole():
    model = network()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    assert_close(output(compiled), output(model), "convolution")
    output(compiled).square().sum().backward()
    gradient = layers(model)[0].position.grad.clone()
    model.zero_grad()
    output(model).square().sum().backward()
    assert_close(layers(model)[0].position.grad, gradient, "gradient")


def gradients_of_a_half(rank, sharded):
    model, images = network(), torch.randn(4, 3, 12, 12, generator=torch.Generator().manual_seed(1))
    if sharded:
        parallel = fully_shard(model, mesh=torch.distributed.init_device_mesh("cpu", (2,)))
    else:
        parallel = nn.parallel.DistributedDataParallel(model)
    parallel(images[2 * rank : 2 * rank + 2]).square().mean().backward()
    gradients = {name: parameter.grad for name, parameter in model.named_parameters()}
    if sharded:
        gradients = {name: gradient.full_tensor() for name, gradient in gradients.items()}
    return gradients, is_shared(model)


@pytest.mark.parametrize("sharded", [False, True], ids=["DDP", "FSDP2"])
def test_two_processes_have_the_gradients_of_one(sharded):
    gradients, shared = on_two_processes(gradients_of_a_half, sharded)
    assert shared
    model = network()
    model(torch.randn(4, 3, 12, 12, generator=torch.Generator().manual_seed(1))).square().mean().backward()
    assert gradients.keys() == dict(model.named_parameters()).keys()
    for name, parameter in model.named_parameters():
        assert_close(gradients[name], parameter.grad, "gradient")


STAGES = {
    "stages.2.blocks.5.conv_dw": "stages.2",
    "features.1.0.block.0": "features.1",
    "convnext.encoder.stages.0.layers.2.dwconv": "convnext.encoder.stages.0",
    "stages_3.blocks.0.conv_dw": "stages_3.blocks",
    "blocks.5.mixer.dwconv": "blocks",
    "0": "",
    "conv": "",
    "1.0": "1",
}


@pytest.mark.parametrize(("name", "stage"), STAGES.items(), ids=STAGES)
def test_the_stage_of_a_layer(name, stage):
    assert stage_of(name) == stage


def test_groups_of_layers_that_share():
    named = [(f"{stage}.{block}.conv", Dcls2d(4, 4, 2, size)) for stage in (0, 1) for block, size in enumerate((5, 5))]
    named.append(("1.2.conv", Dcls2d(8, 8, 2, 5)))
    names = [name for name, _ in named]
    assert sharing_groups(named, "stage") == [names[:2], names[2:4], names[4:]]
    assert sharing_groups(named, None) == [[name] for name in names]
    assert sharing_groups(named, lambda name, layer: 0) == [names[:4], names[4:]]
    with pytest.raises(ValueError, match=r"share must be 'stage', None or a function .* got 'model'"):
        sharing_groups(named, "model")


ERRORS = {
    "none": ([], ValueError, "layers must hold at least one Dcls layer, got none"),
    "one": (Dcls2d(4, 4, 2, 5), TypeError, "layers must be Dcls layers, such as in a list, got Dcls2d"),
    "other": ([nn.Conv2d(1, 1, 1)], TypeError, "layers must be Dcls1d, Dcls2d or Dcls3d, got Conv2d"),
    "shape": ([Dcls2d(4, 4, 2, 5), Dcls2d(8, 8, 2, 5)], ValueError, "positions of one shape .* share each kind"),
    "axes": ([Dcls1d(4, 4, 2, 5), Dcls2d(4, 4, 2, 5)], ValueError, "positions of one shape"),
    "interpolation": (
        [Dcls2d(4, 4, 2, 5), Dcls2d(4, 4, 2, 5, interpolation="triangle")],
        ValueError,
        "one interpolation.*got 'gauss' and 'triangle'",
    ),
    "window": ([Dcls2d(4, 4, 2, 5), Dcls2d(4, 4, 2, 9)], ValueError, r"windows of one size.*got \(5, 5\) and \(9, 9\)"),
    "learned axes": (
        [Dcls2d(4, 4, 2, (3, 9), dense_axes=(0,)), Dcls2d(4, 4, 2, (9, 3), dense_axes=(1,))],
        ValueError,
        r"got \(1,\) and \(0,\)",
    ),
    "dtype": ([Dcls2d(4, 4, 2, 5), Dcls2d(4, 4, 2, 5, dtype=torch.float64)], ValueError, "got torch.float32 and"),
}


@pytest.mark.parametrize(("wrong", "error", "message"), ERRORS.values(), ids=ERRORS)
def test_what_cannot_share_is_refused(wrong, error, message):
    with pytest.raises(error, match=message):
        share_positions(wrong)


def _gradients(model, loss):
    return dict(zip(dict(model.named_parameters()), torch.autograd.grad(loss, list(model.parameters())), strict=True))


@pytest.mark.parametrize("interpolation", ["gauss", "bilinear"])
def test_shared_profiles_change_neither_values_nor_gradients(interpolation, monkeypatch):
    model = network(interpolation)
    expected = output(model).square().mean()
    gradients = _gradients(model, expected)
    computed = []
    monkeypatch.setattr("torchdcls.layers.dense_kernel", lambda *arguments: computed.append(arguments))
    with shared_profiles(model):
        loss = output(model).square().mean()
    assert not computed, "each layer took the profiles of its stage"
    assert_close(loss, expected, "convolution")
    for name, gradient in _gradients(model, loss).items():
        assert_close(gradient, gradients[name], "gradient")


def test_shared_profiles_are_never_stale():
    model, moved = network(), network()
    with torch.no_grad():
        layers(moved)[0].position.add_(0.5)
    with shared_profiles(model):
        with torch.no_grad():
            layers(model)[0].position.add_(0.5)
        assert torch.equal(output(model), output(moved)), "an edit within is noticed"
    layers(model)[2].sigma.data.add_(0.3)
    assert not torch.equal(output(model), output(moved)), "nothing is kept when it closes"
    assert not SHARED
    with torch.no_grad(), shared_profiles(model):
        pass
    layers(model)[2].position.data[0, 0, 0, 0] = float("nan")
    with pytest.raises(ValueError, match="position must be finite, got 1 values"), shared_profiles(model):
        pass
    with pytest.raises(KeyError), shared_profiles(network()):  # noqa: PT012
        assert SHARED
        raise KeyError
    assert not SHARED


def test_profiles_computed_without_gradients_are_not_used_where_these_are_needed():
    model = network()
    manager = shared_profiles(model)
    with torch.no_grad():
        manager.__enter__()
    loss = output(model).square().mean()
    manager.__exit__(None, None, None)
    assert all(gradient.any() for gradient in _gradients(model, loss).values())


def test_shared_profiles_with_gradient_checkpointing():
    model = network()
    expected = _gradients(model, output(model).square().mean())
    images = torch.randn(2, 3, 12, 12, generator=torch.Generator().manual_seed(1))
    with shared_profiles(model):
        loss = checkpoint_sequential(model, 2, images, use_reentrant=False).square().mean()
        gradients = _gradients(model, loss)
    for name, gradient in gradients.items():
        assert_close(gradient, expected[name], "gradient")


def test_compiled_models_do_without_shared_profiles():
    model = network()
    with shared_profiles(model):
        compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
        assert_close(output(compiled), output(model), "convolution")


def test_parametrized_positions_are_not_shared():
    layers = [Dcls2d(4, 4, 2, 5) for _ in range(2)]
    torch.nn.utils.parametrize.register_parametrization(layers[1], "position", nn.Tanh())
    with pytest.raises(TypeError, match="hold their positions as they are to share them, got a parametrized one"):
        share_positions(layers)


def test_what_makes_parameters_anew_undoes_sharing_until_it_is_done_again():
    model = nn.Sequential(*(Dcls2d(4, 4, 2, 5) for _ in range(2)))
    share_positions(model)
    copied = nn.Sequential(*(Dcls2d(4, 4, 2, 5) for _ in range(2)))
    share_positions(copied)
    copied.load_state_dict(model.state_dict(), assign=True)
    assert copied[0].position is not copied[1].position
    share_positions(copied)
    assert copied[0].position is copied[1].position
    assert torch.equal(copied[0].position, model[0].position)


def test_averages_by_parameters_are_right_and_those_by_state_dicts_are_not():
    model = nn.Sequential(*(Dcls2d(4, 4, 2, 5) for _ in range(2)))
    share_positions(model)
    right = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.5))
    right.update_parameters(model)
    timms = timm.utils.ModelEmaV3(model, decay=0.5)
    before = model[0].position.detach().clone()
    with torch.no_grad():
        model[0].position.add_(4)
    right.update_parameters(model)
    timms.update(model)
    assert_close(right.module[0].position, before + 2, "kernel")
    assert_close(timms.module[0].position, before + 3, "kernel")  # as the pages warn

import math

import pytest
import timm.optim
import timm.scheduler
import torch
from torch import nn

from torchdcls import (
    Dcls1d,
    Dcls2d,
    clamp_positions_,
    parameter_groups,
    register_position_hooks,
    repulsion_loss,
    share_positions,
)


class Network(nn.Module):
    def __init__(self, interpolation="gauss"):
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 1)
        self.norm = nn.BatchNorm2d(8)
        self.token = nn.Parameter(torch.zeros(1, 8, 1, 1))
        self.blocks = nn.Sequential(
            *(Dcls2d(8, 8, 3, 9, padding=4, groups=8, interpolation=interpolation) for _ in range(2))
        )
        share_positions(self.blocks)
        self.frozen = nn.Linear(8, 8).requires_grad_(False)

    def no_weight_decay(self):
        return {"token"}

    def forward(self, x):
        return self.blocks(self.norm(self.stem(x)) + self.token).mean((2, 3))


def named_groups(model, groups):
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    return {group["name"]: {names[id(parameter)] for parameter in group["params"]} for group in groups}


def test_who_goes_where():
    model = Network()
    groups = parameter_groups(model, lr=0.1, weight_decay=0.05)
    assert named_groups(model, groups) == {
        "decay": {"stem.weight", "blocks.0.weight", "blocks.1.weight"},
        "no_decay": {"stem.bias", "norm.weight", "norm.bias", "token", "blocks.0.bias", "blocks.1.bias"},
        "positions": {"blocks.0.position", "blocks.0.sigma"},
    }
    settings = {group["name"]: (group["lr"], group["weight_decay"]) for group in groups}
    assert settings == {"decay": (0.1, 0.05), "no_decay": (0.1, 0.0), "positions": (0.5, 0.0)}


def test_the_rest_goes_where_timm_puts_it():
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Linear(8, 8), Network())
    ours = named_groups(model, parameter_groups(model, 0.1, 0.05))
    theirs = timm.optim.param_groups_weight_decay(model, 0.05)
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    by_decay = {group["weight_decay"]: {names[id(p)] for p in group["params"]} for group in theirs}
    positions = ours["positions"]
    assert positions <= by_decay[0.05], "timm by itself decays positions"
    assert ours["decay"] == by_decay[0.05] - positions
    assert ours["no_decay"] == by_decay[0.0]


class Wildcard(nn.Module):
    """As timm's xcit names what is not decayed."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Linear(4, 4)
        self.other = nn.ParameterDict({"bias": nn.Parameter(torch.ones(2, 2))})

    def no_weight_decay(self):
        return {"embed.*"}


def test_names_with_wildcards_and_large_biases_go_where_timm_puts_them():
    model = Wildcard()
    ours = named_groups(model, parameter_groups(model, 0.1, 0.05))
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    theirs = timm.optim.param_groups_weight_decay(model, 0.05, no_weight_decay_list=model.no_weight_decay())
    by_decay = {group["weight_decay"]: {names[id(parameter)] for parameter in group["params"]} for group in theirs}
    assert set(by_decay) == {0.0}
    assert ours == {"no_decay": by_decay[0.0]}


def test_parametrized_positions_are_positions():
    class Twice(nn.Module):
        def forward(self, x):
            return 2 * x

    layer = Dcls2d(4, 4, 2, 5)
    nn.utils.parametrize.register_parametrization(layer, "position", Twice())
    assert named_groups(layer, parameter_groups(layer, 0.1, 0.05))["positions"] == {
        "parametrizations.position.original",
        "sigma",
    }


def test_a_model_without_positions_has_none():
    assert [group["name"] for group in parameter_groups(nn.Linear(2, 2), 0.1, 0.05)] == ["decay", "no_decay"]


@pytest.mark.parametrize("name", ["lr", "weight_decay", "position_lr_scale"])
@pytest.mark.parametrize("value", [-1.0, math.nan])
def test_negative_settings_are_refused(name, value):
    with pytest.raises(ValueError, match=f"{name} must be a number of at least 0, got"):
        parameter_groups(nn.Linear(2, 2), **{"lr": 0.1, "weight_decay": 0.1, name: value})


@pytest.mark.parametrize("name", ["lr", "weight_decay", "position_lr_scale"])
@pytest.mark.parametrize("value", [None, "0.1", 1j])
def test_settings_that_are_no_numbers_are_refused(name, value):
    with pytest.raises(TypeError, match=f"{name} must be a number of at least 0, got"):
        parameter_groups(nn.Linear(2, 2), **{"lr": 0.1, "weight_decay": 0.1, name: value})


CALLS = {
    "parameter_groups": lambda model: parameter_groups(model, 0.1, 0.05),
    "clamp_positions_": clamp_positions_,
    "repulsion_loss": repulsion_loss,
    "register_position_hooks": lambda model: register_position_hooks(model, None),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
@pytest.mark.parametrize(("model", "got"), [([Network()], "list"), (Network, "the class Network"), (None, "NoneType")])
def test_what_is_no_model_is_refused(call, model, got):
    with pytest.raises(TypeError, match=f"model must be a torch.nn.Module, got {got}"):
        call(model)


TORCH = torch.optim.lr_scheduler
SCHEDULES = {
    "torch cosine with a floor": lambda o: TORCH.CosineAnnealingLR(o, 10, eta_min=1e-3),
    "torch one cycle": lambda o: TORCH.OneCycleLR(o, max_lr=0.1, total_steps=12),
    "torch lambda": lambda o: TORCH.LambdaLR(o, lambda step: 1 / (1 + step)),
    "torch warm-up": lambda o: TORCH.LinearLR(o, start_factor=0.1, total_iters=5),
    "torch steps": lambda o: TORCH.StepLR(o, 3, gamma=0.3),
    "timm cosine": lambda o: timm.scheduler.CosineLRScheduler(o, 10, lr_min=1e-3, warmup_t=3, warmup_lr_init=1e-4),
    "timm steps": lambda o: timm.scheduler.StepLRScheduler(o, 3, 0.3, warmup_t=3, warmup_lr_init=1e-4),
    "timm polynomial": lambda o: timm.scheduler.PolyLRScheduler(o, 10, lr_min=1e-3),
    "timm tanh": lambda o: timm.scheduler.TanhLRScheduler(o, 10, lr_min=1e-3),
}
OPTIMISERS = {
    "AdamW": torch.optim.AdamW,
    "SGD": torch.optim.SGD,
    "timm lamb": lambda groups: timm.optim.create_optimizer_v2(groups, opt="lamb", lr=0.1),
    "timm lion": lambda groups: timm.optim.create_optimizer_v2(groups, opt="lion", lr=0.1),
    "timm adamw": lambda groups: timm.optim.create_optimizer_v2(groups, opt="adamw", lr=0.1, weight_decay=0.3),
}


@pytest.mark.parametrize("schedule", SCHEDULES.values(), ids=SCHEDULES)
@pytest.mark.parametrize("optimiser", OPTIMISERS.values(), ids=OPTIMISERS)
def test_the_ratio_and_the_decay_hold_through_any_schedule(optimiser, schedule):
    model = Network()
    optimizer = optimiser(parameter_groups(model, lr=0.1, weight_decay=0.05))
    register_position_hooks(model, optimizer)
    seen = []
    optimizer.register_step_pre_hook(
        lambda optimizer, *_: seen.append({g["name"]: (g["lr"], g["weight_decay"]) for g in optimizer.param_groups})
    )
    scheduler = schedule(optimizer)
    for step in range(10):
        optimizer.zero_grad()
        model(torch.randn(2, 3, 8, 8)).square().sum().backward()
        optimizer.step()
        scheduler.step(step + 1, 1.0) if "timm" in type(scheduler).__module__ else scheduler.step()
    assert len({settings["decay"][0] for settings in seen}) > 1
    for settings in seen:
        assert settings["positions"][0] == pytest.approx(5 * settings["decay"][0], rel=1e-12)
        assert settings["positions"][1] == settings["no_decay"][1] == 0
        assert settings["decay"][1] == 0.05


def test_schedules_that_multiply_keep_the_ratio_without_hooks():
    optimizer = torch.optim.AdamW(parameter_groups(Network(), lr=0.1, weight_decay=0.05))
    scheduler = TORCH.CosineAnnealingLR(optimizer, 10)
    for _ in range(9):
        optimizer.step()
        scheduler.step()
        decay, _, positions = optimizer.param_groups
        assert positions["lr"] == pytest.approx(5 * decay["lr"], rel=1e-9)


def test_learning_rates_in_tensors():
    model = Network()
    optimizer = torch.optim.SGD(
        [{**group, "lr": torch.tensor(group["lr"])} for group in parameter_groups(model, lr=0.1, weight_decay=0.0)]
    )
    register_position_hooks(model, optimizer)
    rate = optimizer.param_groups[2]["lr"]
    optimizer.param_groups[0]["lr"].fill_(0.01)
    optimizer.step()
    assert optimizer.param_groups[2]["lr"] is rate
    assert rate.item() == pytest.approx(0.05)


def test_the_ratio_is_part_of_the_optimisers_state():
    first, second = (torch.optim.SGD(parameter_groups(Network(), 0.1, 0.0, scale)) for scale in (3.0, 5.0))
    second.load_state_dict(first.state_dict())
    register_position_hooks(Network(), second)
    second.step()
    assert second.param_groups[2]["lr"] == pytest.approx(0.3)


def test_positions_are_clamped_after_each_step_and_only_where_it_is_needed():
    for interpolation, kept in (("bilinear", True), ("gauss", False)):
        model = Network(interpolation)
        optimizer = torch.optim.SGD(parameter_groups(model, lr=1.0, weight_decay=0.0))
        handles = register_position_hooks(model, optimizer)
        model.blocks[0].position.grad = torch.full_like(model.blocks[0].position, -100.0)
        optimizer.step()
        assert (model.blocks[0].position.max() <= 4) == kept
        for handle in handles:
            handle.remove()
        optimizer.step()
        assert model.blocks[0].position.max() > 4
        clamp_positions_(model)
        assert (model.blocks[0].position.max() <= 4) == kept


def test_repulsion_is_the_first_papers():
    model = nn.Sequential(Dcls2d(2, 4, 5, 9), Dcls1d(3, 3, 4, 7))
    expected = []
    for layer in model:
        _, outputs, inputs, count = layer.position.shape
        total = 0.0
        for out in range(outputs):
            for channel in range(inputs):
                for k in range(count):
                    for other in range(k):
                        apart = layer.position[:, out, channel, k] - layer.position[:, out, channel, other]
                        total += max(0.0, 1 - apart.norm().item())
        expected.append(2 / (count * (count - 1) * outputs * inputs) * total)
    assert repulsion_loss(model).item() == pytest.approx((sum(expected) / 2) ** 2, rel=1e-5)


def test_repulsion_counts_a_shared_parameter_once():
    layers = [Dcls2d(4, 4, 5, 9) for _ in range(3)]
    share_positions(layers[:2])
    both = repulsion_loss(nn.Sequential(layers[0], layers[2]))
    assert repulsion_loss(nn.Sequential(*layers)).item() == pytest.approx(both.item(), rel=1e-6)


def test_repulsion_drives_elements_apart_and_has_finite_slopes_where_they_coincide():
    layer = Dcls2d(1, 1, 3, 9)
    layer.position.data = torch.tensor([[0.0, 0.0, 0.4], [0.0, 0.0, 0.3]]).view_as(layer.position)
    repulsion_loss(layer).backward()
    assert layer.position.grad.isfinite().all()
    assert (layer.position.grad[:, 0, 0, 2] < 0).all()  # descending moves the third away from the others
    assert repulsion_loss(Dcls2d(1, 1, 1, 9)) == 0
    assert torch.autograd.gradcheck(
        lambda position: torch.func.functional_call(Repulsion(layer.double()), {"layer.position": position}, ()),
        (torch.randn(2, 1, 1, 3, dtype=torch.float64).mul_(0.3).requires_grad_(),),
    )


class Repulsion(nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self):
        return repulsion_loss(self.layer)


def test_repulsion_needs_a_layer():
    with pytest.raises(ValueError, match="model must hold a Dcls layer, got a Linear without one"):
        repulsion_loss(nn.Linear(2, 2))

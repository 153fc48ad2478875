"""ConvNeXt-T with stock, converted and official layers: training step, inference, memory, growth with size."""

import copy
import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import timm
import torch
from torch import Tensor, nn

from torchdcls import Conv2d, fuse, is_depthwise, parameter_groups, replace_convolutions, shared_profiles, to_dcls

from .convolution import without_result
from .harness import Comparison, Run, case

BATCH = {"cpu": 4, "cuda": 64}


def stock() -> Any:
    """The network as timm makes it."""
    torch.manual_seed(0)
    return timm.create_model("convnext_tiny")


def converted(size: int = 23, count: int = 26) -> Any:
    """The paper's."""
    model = stock()
    to_dcls(model, kernel_count=count, dilated_kernel_size=size)
    return model


def swapped() -> nn.Module:
    """Stock, with its depthwise convolutions computed by torchdcls."""
    model = stock()

    def make(name: str, conv: nn.Conv2d) -> nn.Module:
        fast = Conv2d(conv.in_channels, conv.out_channels, 7, padding=3, groups=conv.groups)
        fast.load_state_dict(conv.state_dict())
        return fast

    replace_convolutions(model, is_depthwise, make)
    return model


def official() -> Any:
    """The authors' layers in the same places, sharing positions and widths per stage, with the same values."""
    logging.disable(logging.WARNING)
    from DCLS.construct.modules import Dcls2d as OfficialDcls2d

    ours = converted()
    theirs = stock()
    for block_ours, block in zip(blocks(ours), blocks(theirs), strict=True):
        layer = block_ours.conv_dw
        channels = layer.in_channels
        new = OfficialDcls2d(
            channels, channels, 26, padding=11, dilated_kernel_size=(23, 23), groups=channels, version="gauss"
        )
        new.weight, new.bias = nn.Parameter(layer.weight.detach().clone()), nn.Parameter(layer.bias.detach().clone())
        block.conv_dw = new
    for stage_ours, stage in zip(ours.stages, theirs.stages, strict=True):
        first = stage_ours.blocks[0].conv_dw
        position, sigma = (nn.Parameter(p.detach().flip(0).clone()) for p in (first.position, first.sigma))
        for block in stage.blocks:
            block.conv_dw.P, block.conv_dw.SIG = position, sigma
    state = {k: v for k, v in ours.state_dict().items() if "conv_dw" not in k}
    theirs.load_state_dict(state, strict=False)
    return theirs


def blocks(model: Any) -> list[Any]:
    """The 18 blocks."""
    return [block for stage in model.stages for block in stage.blocks]


def task(what: str, device: torch.device) -> str:
    """What is timed, in words."""
    return f"convnext_tiny, {what}, batch {BATCH[device.type]}, 224x224"


def training_step(model: nn.Module, device: torch.device, half: bool = False) -> Run:
    """Forward, backward, AdamW; in bfloat16 where torch's autocast sees fit."""
    model = model.to(device).train()
    groups = parameter_groups(model, lr=1e-6, weight_decay=0.05)
    optimizer = torch.optim.AdamW(groups)
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(BATCH[device.type], 3, 224, 224, generator=generator).to(device)
    labels = torch.randint(1000, (BATCH[device.type],), generator=generator).to(device)

    def run() -> Sequence[Tensor]:
        optimizer.zero_grad()
        with shared_profiles(model), torch.autocast(device.type, torch.bfloat16, enabled=half):
            loss = nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        return [loss.detach()]

    return run


def inference(model: nn.Module, device: torch.device) -> Run:
    """Forward without gradients."""
    model = model.to(device).eval()
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(BATCH[device.type], 3, 224, 224, generator=generator).to(device)

    @torch.no_grad()
    def run() -> Sequence[Tensor]:
        return [model(images)]

    return run


def of_different_networks(
    make: Callable[..., Run], device: torch.device, models: dict[str, nn.Module], **settings: Any
) -> dict[str, Run]:
    """Contenders that compute different functions."""
    return {name: without_result(make(model, device, **settings)) for name, model in models.items()}


@case
def model_step(device: torch.device) -> Iterator[Comparison]:
    text = task("training step", device)
    networks = {"stock 7x7": stock(), "torchdcls 23x23": converted()}
    yield Comparison(
        f"{text}: stock, ours 23x23",
        of_different_networks(training_step, device, networks),
        targets={"torchdcls 23x23": 1 / 1.10},
        memory_targets={"torchdcls 23x23": 1.4},
        repeats=15,
        seconds=90,
    )
    yield Comparison(
        f"{text}: the same network with dcls 0.1.1 and ours",
        {"dcls 0.1.1": training_step(official(), device), "torchdcls": training_step(converted(), device)},
        targets={"torchdcls": 15},
    )
    yield Comparison(
        f"{text}: stock, with torchdcls.Conv2d",
        {"stock": training_step(stock(), device), "torchdcls.Conv2d": training_step(swapped(), device)},
    )

    if device.type == "cuda":
        networks |= {"torchdcls.Conv2d": swapped()}
        yield Comparison(f"{text}, bfloat16", of_different_networks(training_step, device, networks, half=True))


@case
def model_inference(device: torch.device) -> Iterator[Comparison]:
    model = converted()
    fused = fuse(copy.deepcopy(model))
    text = task("inference", device)
    yield Comparison(
        f"{text}: stock, ours fused",
        of_different_networks(inference, device, {"stock 7x7": stock(), "fused 23x23": fused}),
        targets={"fused 23x23": 1 / 1.25},
    )
    yield Comparison(
        f"{text}: ours, as trained and fused",
        {"as trained": inference(model, device), "fused": inference(fused, device)},
    )


@case
def model_size(device: torch.device) -> Iterator[Comparison]:
    sizes = {f"torchdcls {size}x{size}": converted(size) for size in (7, 17, 23, 31, 51)}
    contenders = of_different_networks(training_step, device, {"stock 7x7": stock(), **sizes})
    yield Comparison(task("training step", device), contenders, repeats=3, seconds=90)

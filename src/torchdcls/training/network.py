"""The network of a recipe: timm's model with its convolutions replaced."""

import re
from pathlib import Path
from typing import Any

import timm
import torch
from torch import nn

from ..layers import DclsNd
from ..surgery import Conversion, Where, is_depthwise, matching_kernel_count, to_dcls
from .recipe import Dcls, Recipe
from .values import nearest


def build_network(recipe: Recipe, classes: int, trained: bool = True) -> tuple[nn.Module, Conversion | None]:
    """The network of a recipe, and what was replaced in it.

    Args:
        recipe: whose ``model`` and ``dcls`` sections count.
        classes: outputs of the network.
        trained: False leaves starting weights aside, where a checkpoint is loaded anyway.

    >>> from torchdcls.training.recipe import load_recipe
    >>> network, conversion = build_network(load_recipe("digits"), classes=10)
    >>> network(torch.zeros(1, 1, 28, 28)).shape
    torch.Size([1, 10])
    """
    model = recipe.model
    if not timm.is_model(model.name):
        raise ValueError(f"model.name must be a model of timm's, got {model.name!r}{_nearest_model(model.name)}")
    start: dict[str, Any] = {}
    if trained and model.weights is not None:
        if not Path(model.weights).is_file():
            raise FileNotFoundError(f"model.weights must be a file of trained weights, found none at {model.weights}")
        start = {"pretrained": True, "pretrained_cfg_overlay": {"file": model.weights}}
    elif trained and model.pretrained:
        start = {"pretrained": True}
    try:
        network: nn.Module = timm.create_model(
            model.name, num_classes=classes, in_chans=model.channels, **start, **model.arguments
        )
    except TypeError as error:
        raise TypeError(
            f"model.arguments must be what {model.name} of timm takes, got {model.arguments}: {error}"
        ) from error
    conversion = None if recipe.dcls is None else _convert(network, recipe.dcls, trained)
    if recipe.machine.channels_last:
        network = network.to(memory_format=torch.channels_last)
    return network, conversion


def _convert(network: nn.Module, dcls: Dcls, trained: bool) -> Conversion:
    where = is_depthwise if dcls.where is None else _named(dcls.where)
    count = dcls.kernel_count
    if count == "match":
        count = matching_kernel_count(network, dcls.interpolation, dcls.share, where)
    start = dcls.start if trained else "random"
    conversion = to_dcls(network, count, dcls.dilated_kernel_size, dcls.interpolation, where, dcls.share, start)
    placed = {id(layer.position): layer for layer in network.modules() if isinstance(layer, DclsNd)}
    for layer in placed.values():
        if start == "random":
            with torch.no_grad():
                layer.position.mul_(dcls.position_std / 0.5)  # drawn with a deviation of 0.5
            layer.clamp_positions_()
            if layer.sigma is not None and dcls.sigma is not None:
                nn.init.constant_(layer.sigma, dcls.sigma)
        if layer.sigma is not None and not dcls.learn_width:
            layer.sigma.requires_grad_(False)
    return conversion


def _named(pattern: str) -> Where:
    try:
        compiled = re.compile(pattern)
    except re.error as error:
        raise ValueError(f"dcls.where must be a regular expression, got {pattern!r}: {error}") from error
    return lambda name, module: compiled.fullmatch(name) is not None


def _nearest_model(name: str) -> str:
    known = timm.list_models()
    ending = nearest(name, known)
    return ending if "did you mean" in ending else "; timm.list_models() has them all"

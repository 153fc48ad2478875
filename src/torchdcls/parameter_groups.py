"""How positions and widths are trained: what the optimiser is given, and what is done around its steps.

The paper's learning techniques: a learning rate five times that of the weights, no weight decay, positions
kept on the grid where the interpolation needs it, and, from the first DCLS paper, a loss that keeps
elements apart.
"""

import fnmatch
import numbers
from collections.abc import Iterator
from typing import Any, Protocol, cast

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from .layers import DclsNd, check_model


class Placed(Protocol):
    """What has positions to learn: every Dcls layer, and those of :mod:`torchdcls.official`."""

    def placement_parameters(self) -> Iterator[nn.Parameter]:
        """The parameters that place the elements."""

    def clamp_positions_(self) -> None:
        """Move positions that have left their window back, in place, where that is needed."""


RATIO = "position_lr_scale"  # the entry of a group that holds its ratio, and is saved with the optimiser's state


def parameter_groups(
    model: nn.Module, lr: float, weight_decay: float, position_lr_scale: float = 5.0
) -> list[dict[str, Any]]:
    """The parameters of ``model`` in groups for any optimiser of torch's or timm's.

    ``"decay"`` holds the weights; ``"no_decay"`` biases, norms and whatever the model's own
    ``no_weight_decay()`` names, as in timm; ``"positions"`` positions and widths, without decay and with a
    learning rate of ``position_lr_scale * lr``. Frozen parameters and empty groups are left out.

    A schedule that multiplies learning rates keeps the ratio by itself; one that also has a floor, a
    starting value or a maximum for all groups needs :func:`register_position_hooks`.

    >>> from torchdcls import Dcls2d
    >>> layer = Dcls2d(8, 8, kernel_count=5, dilated_kernel_size=9, groups=8)
    >>> groups = parameter_groups(layer, lr=1e-3, weight_decay=0.05)
    >>> [(group["name"], len(group["params"]), group["lr"], group["weight_decay"]) for group in groups]
    [('decay', 1, 0.001, 0.05), ('no_decay', 1, 0.001, 0.0), ('positions', 2, 0.005, 0.0)]
    """
    check_model(model)
    given: dict[str, Any] = {"lr": lr, "weight_decay": weight_decay, "position_lr_scale": position_lr_scale}
    for name, value in given.items():
        if not isinstance(value, numbers.Real):
            raise TypeError(f"{name} must be a number of at least 0, got {value!r}")
        if not float(value) >= 0:
            raise ValueError(f"{name} must be a number of at least 0, got {value!r}")
    placed = {id(parameter) for _, parameter in placement_parameters(model)}
    undecayed: set[str] = set(getattr(model, "no_weight_decay", set)())
    members: dict[str, list[nn.Parameter]] = {"decay": [], "no_decay": [], "positions": []}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            named = any(fnmatch.fnmatch(name, pattern) for pattern in undecayed)
            plain = parameter.dim() <= 1 or name.endswith(".bias") or named
            members["positions" if id(parameter) in placed else "no_decay" if plain else "decay"].append(parameter)
    settings: dict[str, dict[str, float]] = {
        "decay": {"lr": lr, "weight_decay": weight_decay},
        "no_decay": {"lr": lr, "weight_decay": 0.0},
        "positions": {"lr": position_lr_scale * lr, "weight_decay": 0.0, RATIO: position_lr_scale},
    }
    return [{"name": name, "params": found, **settings[name]} for name, found in members.items() if found]


def placement_parameters(model: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """The name and Parameter of each position and width in ``model``; shared ones come once."""
    names = {id(parameter): name for name, parameter in reversed(list(model.named_parameters(remove_duplicate=False)))}
    seen = set()
    for module in placed_layers(model):
        for parameter in module.placement_parameters():
            if id(parameter) not in seen:
                seen.add(id(parameter))
                yield names[id(parameter)], parameter


def placed_layers(model: nn.Module) -> Iterator[Placed]:
    """The layers of ``model`` that have positions to learn."""
    yield from (cast(Placed, module) for module in model.modules() if hasattr(module, "placement_parameters"))


def clamp_positions_(model: nn.Module) -> None:
    """Move positions that have left their window back to its edge, in place, where the interpolation needs it."""
    check_model(model)
    for layer in placed_layers(model):
        layer.clamp_positions_()


def register_position_hooks(model: nn.Module, optimizer: torch.optim.Optimizer) -> list[RemovableHandle]:
    """Do what positions need around each ``optimizer.step()``, whatever schedule is used.

    Before a step the learning rate of the ``"positions"`` group of :func:`parameter_groups` is set to its
    multiple of the other groups' rate; after it :func:`clamp_positions_` is called.

    >>> from torchdcls import Dcls2d
    >>> model = Dcls2d(8, 8, kernel_count=5, dilated_kernel_size=9, groups=8)
    >>> optimizer = torch.optim.AdamW(parameter_groups(model, lr=1e-3, weight_decay=0.05))
    >>> handles = register_position_hooks(model, optimizer)
    """
    check_model(model)

    def before(optimizer: torch.optim.Optimizer, *_: Any) -> None:
        rates = [group["lr"] for group in optimizer.param_groups if RATIO not in group]
        for group in optimizer.param_groups:
            if rates and RATIO in group:
                rate = rates[0] * group[RATIO]
                if isinstance(group["lr"], Tensor):
                    group["lr"].copy_(rate)
                else:
                    group["lr"] = rate

    def after(*_: Any) -> None:
        clamp_positions_(model)

    return [optimizer.register_step_pre_hook(before), optimizer.register_step_post_hook(after)]


def repulsion_loss(model: nn.Module) -> Tensor:
    """How much elements of one kernel crowd each other: 0 when all are at least one tap apart.

        L = mean over position parameters of  2 / (m (m - 1) C) · Σ_{k < l} max(0, 1 - ‖p_k - p_l‖),  squared

    with ``C`` kernels of ``m`` elements in a parameter; a shared parameter counts once. The first paper
    adds it to the loss from the 20th epoch on.

    >>> from torchdcls import Dcls1d
    >>> layer = Dcls1d(1, 1, kernel_count=2, dilated_kernel_size=9)
    >>> layer.position.data = torch.tensor([[[[0.0, 0.5]]]])
    >>> repulsion_loss(layer).item()
    0.25
    """
    check_model(model)
    losses = []
    seen = set()
    for module in model.modules():
        if isinstance(module, DclsNd) and id(module.position) not in seen:
            seen.add(id(module.position))
            losses.append(_crowding(module.position))
    if not losses:
        raise ValueError(f"model must hold a Dcls layer, got a {type(model).__name__} without one")
    return torch.stack(losses).mean().square()


def _crowding(position: Tensor) -> Tensor:
    count = position.shape[-1]
    if count == 1:
        return position.sum() * 0.0
    first, second = torch.triu_indices(count, count, offset=1, device=position.device)
    squared = (position[..., first] - position[..., second]).square().sum(0)
    # The square root has no slope at 0, where two elements coincide; these stay where they are.
    apart = squared > 0
    distance = torch.where(apart, squared, torch.ones_like(squared)).sqrt() * apart
    return (1 - distance).clamp_min(0).mean()

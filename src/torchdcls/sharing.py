"""One set of positions and widths for many layers: the same Parameter objects in each of them.

Optimisers, state dicts, ``deepcopy`` and data-parallel training know what a parameter in two places is:
it is counted, copied and updated once, and gathers the gradients of all its layers.
"""

from collections.abc import Callable, Hashable, Iterable, Iterator
from contextlib import contextmanager
from typing import Literal

from torch import nn

from .interpolation import Interpolation
from .kernel import Profiles, check_elements, profiles
from .layers import SHARED, DclsNd, check_model

Share = Literal["stage"] | Callable[[str, nn.Module], Hashable] | None


def share_positions(layers: Iterable[DclsNd]) -> None:
    """Give all ``layers`` the ``position`` and ``sigma`` of the first, as the paper does within a stage.

    Weights and biases stay each layer's own. What makes every parameter anew undoes sharing, of these as of
    any others: ``to_empty``, ``.to("meta")``, ``load_state_dict(..., assign=True)``. Share again afterwards, and
    before an optimiser is made.

    >>> from torchdcls import Dcls2d
    >>> first, second = (Dcls2d(8, 8, kernel_count=5, dilated_kernel_size=9, groups=8) for _ in range(2))
    >>> share_positions([first, second])
    >>> second.position is first.position
    True
    """
    if not isinstance(layers, Iterable):
        raise TypeError(f"layers must be Dcls layers, such as in a list, got {type(layers).__name__}")
    layers = list(layers)
    if not layers:
        raise ValueError("layers must hold at least one Dcls layer, got none")
    for layer in layers:
        if not isinstance(layer, DclsNd):
            raise TypeError(f"layers must be Dcls1d, Dcls2d or Dcls3d, got {type(layer).__name__}")
        if not isinstance(layer.position, nn.Parameter):
            raise TypeError("layers must hold their positions as they are to share them, got a parametrized one")
        ours, theirs = _kind(layers[0]), _kind(layer)
        if ours != theirs:
            one, other = next((a, b) for a, b in zip(ours, theirs, strict=True) if a != b)
            raise ValueError(
                "layers must have positions of one shape in windows of one size, and one interpolation, dtype and "
                f"device, to share them, got {_shown(one)} and {_shown(other)}; share each kind on its own"
            )
    for layer in layers[1:]:
        layer.position, layer.sigma = layers[0].position, layers[0].sigma


@contextmanager
def shared_profiles(model: nn.Module) -> Iterator[None]:
    """Within it, layers of ``model`` that share positions also share what is computed from these alone.

    A step of training has less to do then; values and gradients stay the same. Open it anew for each
    backward pass: around the forward pass, or around both, as gradient checkpointing needs it. An edit in
    place within it, by an optimiser say, is noticed, one through ``.data`` is not. What torch compiles needs
    no such thing, and does without it.

    >>> import torch
    >>> from torchdcls import Dcls2d
    >>> model = nn.Sequential(*(Dcls2d(8, 8, kernel_count=5, dilated_kernel_size=9, groups=8) for _ in range(2)))
    >>> share_positions(model)
    >>> with shared_profiles(model):
    ...     loss = model(torch.randn(1, 8, 20, 20)).square().mean()
    >>> loss.backward()
    """
    check_model(model)
    placed: dict[Hashable, list[DclsNd]] = {}
    for module in model.modules():
        # Where a tensor is more than its numbers, say a part of one that lies on several devices, each layer
        # computes when it is called.
        if isinstance(module, DclsNd) and type(module.position) is nn.Parameter:
            placed.setdefault(module.placement(), []).append(module)
    known = {placement: _profiles(layers[0]) for placement, layers in placed.items() if len(layers) > 1}
    SHARED.update(known)
    try:
        yield
    finally:
        for placement in known:
            SHARED.pop(placement, None)


def _profiles(layer: DclsNd) -> Profiles:
    placed = layer.position, layer.sigma, layer.learned_size, layer.interpolation
    check_elements(layer.weight, *placed)
    return profiles(*placed)


def sharing_groups(layers: Iterable[tuple[str, DclsNd]], share: Share) -> list[list[str]]:
    """The names of layers in groups that are to share positions, each layer in one group.

    Args:
        layers: (name, layer) as from ``named_modules``.
        share: ``"stage"``, None for a group each, or a function of (name, layer): equal values share.
    """
    if not (share is None or share == "stage" or callable(share)):
        raise ValueError(f"share must be 'stage', None or a function of (name, module), got {share!r}")
    groups: dict[Hashable, list[str]] = {}
    for name, layer in layers:
        if share is None:
            key: Hashable = name
        else:
            key = stage_of(name) if share == "stage" else share(name, layer)
        groups.setdefault((key, _kind(layer)), []).append(name)
    return list(groups.values())


def stage_of(name: str) -> str:
    """The stage that a layer of that name belongs to: the outermost numbered part that holds numbered parts.

    Where parts are numbered once only, as in a plain stack of blocks, that whole stack is the stage.

    >>> stage_of("stages.2.blocks.5.conv_dw"), stage_of("features.1.0.block.0"), stage_of("blocks.5.mixer.dwconv")
    ('stages.2', 'features.1', 'blocks')
    """
    parts = name.split(".")
    numbered = [i for i, part in enumerate(parts) if part.isdigit()]
    if not numbered:
        return ""
    return ".".join(parts[: numbered[0] + (len(numbered) > 1)])


def _shown(part: Hashable) -> str:
    return repr(part.name if isinstance(part, Interpolation) else part)


def _kind(layer: DclsNd) -> tuple[Hashable, ...]:
    """What layers must agree on to share positions."""
    position = layer.position
    window = layer.learned_axes, layer.learned_size
    return tuple(position.shape), layer.interpolation, *window, position.dtype, position.device

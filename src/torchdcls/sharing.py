"""One set of positions and widths for many layers: the same Parameter objects in each of them.

Optimisers, state dicts, ``deepcopy`` and data-parallel training know what a parameter in two places is:
it is counted, copied and updated once, and gathers the gradients of all its layers.
"""

from collections.abc import Callable, Hashable, Iterable
from typing import Literal

from torch import nn

from .layers import DclsNd

Share = Literal["stage"] | Callable[[str, nn.Module], Hashable] | None


def share_positions(layers: Iterable[DclsNd]) -> None:
    """Give all ``layers`` the ``position`` and ``sigma`` of the first, as the paper does within a stage.

    Weights and biases stay each layer's own. A model made on the meta device loses every kind of
    sharing in ``to_empty``: share again afterwards.

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
        ours, theirs = _kind(layers[0]), _kind(layer)
        if ours != theirs:
            raise ValueError(
                "layers must have positions of one shape and one interpolation to share them, "
                f"got {ours} and {theirs}; share each kind on its own"
            )
    for layer in layers[1:]:
        layer.position, layer.sigma = layers[0].position, layers[0].sigma


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


def _kind(layer: DclsNd) -> tuple[tuple[int, ...], str]:
    """What layers must agree on to share positions."""
    return tuple(layer.position.shape), layer.interpolation.name

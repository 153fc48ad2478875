"""From official layers, models and checkpoints to native ones that compute the same outputs."""

import copy
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, overload

import torch
from torch import Tensor, nn

from .. import layers as native_layers
from ..interpolation import Interpolation, bilinear, gauss, triangle
from ..kernel import per_axis
from .base import OfficialLayer
from .kernels import VERSIONS, Placement

normalized_bilinear = dataclasses.replace(bilinear, name="normalized bilinear", normalized=True)

# The same values as in `kernels.VERSIONS`, with the gradients of the library.
NATIVE: Mapping[str, Interpolation] = {
    "v0": bilinear,
    "v1": normalized_bilinear,
    "max": triangle,
    "gauss": gauss,
}
_LAYERS = ("Dcls1d", "Dcls2d", "Dcls3d", "Dcls2dK1d", "Dcls2_1d", "Dcls3_1d")
_PARTS = {"weight": "weight", "P": "position", "SIG": "sigma"}
_HOLDERS = ("state_dict", "model", "model_state_dict")
_WRAPPERS = ("module.", "_orig_mod.")
# Dcls2_1d's gauss has a width of 1 + |SIG|, the native one 0.27 + |sigma|.
_WIDER = 1.0 - 0.27
_Seen = dict[tuple[str, int], tuple["_Change", nn.Parameter, str]]  # (part, id) -> what became of it, and where first


@dataclasses.dataclass(frozen=True)
class _Change:
    """What the parameters of one layer go through: the native ones are functions of the official ones.

    Attributes:
        placement: how rows of ``P`` become positions.
        flat: whether the native layer has an axis of one dense tap more than the official weights have.
        wider: what is added to each width.
    """

    placement: Placement
    flat: bool = False
    wider: float = 0.0

    def weight(self, weight: Tensor) -> Tensor:
        return weight.unsqueeze(2) if self.flat else weight

    def position(self, position: Tensor) -> Tensor:
        position = self.placement.position(position)
        return position.unsqueeze(3) if self.flat else position

    def sigma(self, sigma: Tensor) -> Tensor:
        sigma = self.placement.in_kernel_order(sigma)
        sigma = sigma.abs() + self.wider if self.wider else sigma
        return sigma.unsqueeze(3) if self.flat else sigma


@overload
def from_official(source: nn.Module, *, v0_width_first: bool = False) -> Any: ...


@overload
def from_official(
    source: Mapping[str, Any],
    *,
    version: str | None = None,
    dilated_kernel_size: int | Sequence[int] | None = None,
    v0_width_first: bool = False,
) -> dict[str, Any]: ...


def from_official(
    source: nn.Module | Mapping[str, Any],
    *,
    version: str | None = None,
    dilated_kernel_size: int | Sequence[int] | None = None,
    v0_width_first: bool = False,
) -> Any:
    """The native counterpart of an official layer, model or checkpoint, which computes the same outputs.

    A layer gives a :class:`~torchdcls.Dcls1d`, ``Dcls2d`` or ``Dcls3d``; a model a copy of it in which each
    official layer is replaced by its native one, with parameters shared where they were shared; a
    checkpoint, nested under ``"model"`` or ``"state_dict"`` or not, the state dict of the native model.
    ``source`` stays as it is.

    Args:
        source: a module, of this package or of ``dcls``, or the mapping that a checkpoint holds.
        version: of a checkpoint's layers; needed where the tensors do not tell, and for modules known.
        dilated_kernel_size: of a checkpoint's 2-D or 3-D layers, if they are not square; else not needed.
        v0_width_first: whether row 0 of ``P`` in 2-D layers of version v0 belongs to the width, as it did
            until late 2023.

    >>> from torchdcls import official
    >>> theirs = official.Dcls2d(8, 8, kernel_count=5, padding=4, dilated_kernel_size=(9, 7), groups=8)
    >>> ours, x = from_official(theirs), torch.randn(1, 8, 14, 14)
    >>> ours
    Dcls2d(8, 8, kernel_count=5, dilated_kernel_size=(9, 7), padding=(4, 4), groups=8, interpolation=gauss)
    >>> torch.allclose(ours(x), theirs(x), atol=1e-5)
    True
    """
    if isinstance(source, nn.Module):
        if version is not None or dilated_kernel_size is not None:
            raise ValueError(
                "version and dilated_kernel_size must be left out for a module, which knows its own, "
                f"got {version!r} and {dilated_kernel_size!r}"
            )
        return _convert_module(copy.deepcopy(source), v0_width_first)
    if isinstance(source, Mapping):
        return _convert_state(_model_state(source), version, dilated_kernel_size, v0_width_first)
    raise TypeError(f"source must be a module or the mapping that a checkpoint holds, got {type(source).__name__}")


def _convert_module(model: nn.Module, v0_width_first: bool) -> nn.Module:
    """``model`` with native layers; it is the caller's copy, whose parameters are used again where they can be."""
    found = {
        name: (kind, module)
        for name, module in model.named_modules(remove_duplicate=False)
        if (kind := _official_kind(name, module)) is not None
    }
    if not found:
        raise ValueError(f"source must be or hold an official layer, got a {type(model).__name__} without one")
    seen: _Seen = {}
    made: dict[int, nn.Module] = {}
    for name, (kind, module) in found.items():
        if id(module) not in made:
            made[id(module)] = _native_layer(name, kind, module, v0_width_first, seen)
    if "" in found:
        return made[id(model)]
    for name, (_, module) in found.items():
        model.set_submodule(name, made[id(module)])
    return model


def _official_kind(name: str, module: nn.Module) -> str | None:
    """The name of the official class that ``module`` is of, or None if it is of none."""
    bases = [
        base
        for base in type(module).__mro__
        if issubclass(base, OfficialLayer) or base.__module__.partition(".")[0] == "DCLS"
    ]
    known = [base for base in bases if base.__name__ in _LAYERS]
    if not known:
        if any(base.__name__ in ("_DclsNd", "_DclsN_Md") for base in bases):
            raise TypeError(f"{_place(name)} must be one of {', '.join(_LAYERS)}, got {type(module).__name__}")
        return None
    changed = [m for m in ("forward", "_conv_forward") if getattr(type(module), m) is not getattr(known[0], m)]
    if changed or type(module.DCK).__name__ != _construct(known[0].__name__):
        what = " and ".join(changed) or "DCK"
        raise TypeError(
            f"{_place(name)} must compute what {known[0].__name__} does, got a {type(module).__name__} with a {what} "
            "of its own; derive it from the native layer, and convert its state dict"
        )
    return known[0].__name__


def _construct(kind: str) -> str:
    return "ConstructKernel" + ("1d" if kind == "Dcls2dK1d" else kind.removeprefix("Dcls"))


def _native_layer(name: str, kind: str, layer: Any, v0_width_first: bool, seen: _Seen) -> native_layers.DclsNd:
    version, size = layer.DCK.version, tuple(layer.dilated_kernel_size)
    if version not in VERSIONS:
        raise ValueError(f"{_place(name)} must have a DCK.version of {', '.join(VERSIONS)}, got {version!r}")
    interpolation = NATIVE[version]
    parameters = {"weight": layer.weight, "P": layer.P} | ({"SIG": layer.SIG} if interpolation.has_width else {})
    for part, value in parameters.items():
        shape = layer.weight.shape if part == "weight" else (len(size), *layer.weight.shape)
        if not isinstance(value, nn.Parameter) or value.shape != shape:
            shown = tuple(value.shape) if isinstance(value, nn.Parameter) else type(value).__name__
            raise ValueError(f"{_place(name)} must have a Parameter {part} of shape {tuple(shape)}, got {shown}")

    change = _Change(
        Placement.of(version, size, v0_width_first),
        flat=kind == "Dcls2dK1d",
        wider=_WIDER if kind == "Dcls2_1d" and version == "gauss" else 0.0,
    )
    full_size, dense_axes = size, tuple[int, ...]()
    if kind == "Dcls2dK1d":
        full_size, dense_axes = ((1, *size), (0,)) if layer.flat_dim else ((*size, 1), (1,))
    elif kind in ("Dcls2_1d", "Dcls3_1d"):
        full_size = (*layer.dense_kernel_size, *size)
        dense_axes = tuple(range(len(full_size) - 1))
    make: type[native_layers.DclsNd] = getattr(native_layers, f"Dcls{len(full_size)}d")
    result = make(
        layer.in_channels,
        layer.out_channels,
        layer.kernel_count,
        full_size,
        stride=layer.stride,
        padding=layer.padding,
        groups=layer.groups,
        bias=layer.bias is not None,
        padding_mode=layer.padding_mode,
        interpolation=interpolation,
        dense_axes=dense_axes,
        device="meta",
    )
    for part, value in parameters.items():
        setattr(result, _PARTS[part], _changed(name, part, value, change, seen))
    result.bias = layer.bias
    return result.train(layer.training)


@torch.no_grad()
def _changed(name: str, part: str, value: nn.Parameter, change: _Change, seen: _Seen) -> nn.Parameter:
    """The native Parameter for an official one: one and the same for all layers that share it."""
    key = part, id(value)
    if key not in seen:
        new = getattr(change, _PARTS[part])(value)
        native = value if new is value else nn.Parameter(new.clone(), requires_grad=value.requires_grad)
        seen[key] = change, native, name
    before, native, first = seen[key]
    if before != change:
        raise ValueError(
            f"{_place(name)} must have a {part} of its own, or share it with layers of its version and size; "
            f"got that of {_place(first)}, which becomes another one"
        )
    return native


def _place(name: str) -> str:
    return f"layer {name}" if name else "source"


def _model_state(checkpoint: Mapping[str, Any]) -> dict[str, Any]:
    """The model's tensors out of what training programs save, by the names that the model gives them."""
    for holder in _HOLDERS:
        if isinstance(checkpoint.get(holder), Mapping):
            return _model_state(checkpoint[holder])
    state = dict(checkpoint)
    if not all(isinstance(key, str) for key in state):
        raise ValueError(f"source must be a state dict, with names as keys, got {', '.join(map(repr, [*state][:5]))}")
    for wrapper in _WRAPPERS:
        while state and all(key.startswith(wrapper) for key in state):
            state = {key.removeprefix(wrapper): value for key, value in state.items()}
    return state


def _convert_state(
    state: dict[str, Any], version: str | None, size: int | Sequence[int] | None, v0_width_first: bool
) -> dict[str, Any]:
    if version is not None and version not in VERSIONS:
        raise ValueError(f"version must be one of {', '.join(VERSIONS)}, got {version!r}")
    prefixes = [key.removesuffix("P") for key in state if key == "P" or key.endswith(".P")]
    if not prefixes:
        shown = ", ".join(list(state)[:5])
        raise ValueError(
            f"source must hold the positions P of official layers, got {len(state)} entries ({shown}, ...); "
            "pass the part of the checkpoint that is the model's state dict"
        )
    result: dict[str, Any] = {}
    changes = {prefix: _change_of_state(prefix, state, version, size, v0_width_first) for prefix in prefixes}
    for key, value in state.items():
        parent, dot, leaf = key.rpartition(".")
        prefix = parent + dot
        if prefix in changes and leaf in _PARTS:
            result[prefix + _PARTS[leaf]] = getattr(changes[prefix], _PARTS[leaf])(value)
        elif prefix.removesuffix("DCK.") not in changes or not prefix.endswith("DCK."):
            result[key] = value
    return result


def _change_of_state(
    prefix: str, state: Mapping[str, Any], version: str | None, size: int | Sequence[int] | None, v0_width_first: bool
) -> _Change:
    """What the tensors of one layer have to go through, as far as they tell, and by what the caller knows."""
    layer = _place(prefix.removesuffix("."))
    weight, position, sigma = state.get(prefix + "weight"), state[prefix + "P"], state.get(prefix + "SIG")
    for name, value in (("weight", weight), ("P", position), ("SIG", sigma)):
        if value is not None and not isinstance(value, Tensor):
            raise ValueError(f"{layer} must have a tensor {name}, got {type(value).__name__}")
    if sigma is not None and sigma.shape != position.shape:
        raise ValueError(
            f"{layer} must have a SIG of the shape of P, {tuple(position.shape)}, got {tuple(sigma.shape)}"
        )
    if weight is None or position.shape[1:] != weight.shape:
        got = None if weight is None else tuple(weight.shape)
        raise ValueError(f"{layer} must have a weight of shape {tuple(position.shape[1:])}, as P has it, got {got}")
    if version is not None and VERSIONS[version].has_width != (sigma is not None):
        raise ValueError(f"{layer} must {'not ' * (sigma is not None)}have a SIG in version {version}")
    rows = position.shape[0]
    old = prefix + "DCK.I" in state  # the grid as releases saved it that knew v0 only, width first
    if sigma is None and rows > 1 and not (version or old):
        raise ValueError(f"version must be v0 or v1 for {layer}, which has no SIG to tell them apart, got None")
    wider = 0.0
    if weight.dim() == 4 and sigma is not None:  # Dcls2_1d
        if version is None:
            raise ValueError(f"version must be max or gauss for {layer}, a Dcls2_1d, got None")
        wider = _WIDER if version == "gauss" else 0.0
    lengths = (1,) * rows  # of equal length: no centre is off
    if rows > 1:
        saved = state.get(prefix + "DCK.lim")
        if saved is not None:
            lengths = tuple(int(n) for n in saved.reshape(rows, -1)[:, 0])
        elif size is not None:
            lengths = per_axis("dilated_kernel_size", size, rows)
    known = version or ("v0" if old else "gauss")  # those with a width have one placement, and 1-D has one in all
    return _Change(Placement.of(known, lengths, v0_width_first or old), wider=wider)

"""Whole models: convert them, keep what they know, fuse them to plain convolutions, count what that costs."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from torch import nn

from .fitting import fit_elements_
from .interpolation import Interpolation, find_interpolation
from .layers import Convolution, Dcls1d, Dcls2d, Dcls3d, DclsNd, check_model
from .parameter_groups import placed_layers
from .sharing import Share, share_positions, sharing_groups

Where = Callable[[str, nn.Module], bool]
Model = TypeVar("Model", bound=nn.Module)

_LAYERS: dict[int, type[DclsNd]] = {1: Dcls1d, 2: Dcls2d, 3: Dcls3d}


def is_depthwise(name: str, module: nn.Module) -> bool:
    """Whether a module is a convolution over space that keeps its channels apart: what the paper replaces.

    >>> is_depthwise("dwconv", nn.Conv2d(8, 8, 7, groups=8)), is_depthwise("pwconv", nn.Conv2d(8, 32, 1))
    (True, False)
    """
    return (
        isinstance(module, Convolution)
        and module.groups == module.in_channels > 1
        and any(size > 1 for size in module.kernel_size)
    )


def replace_convolutions(model: nn.Module, where: Where, make: Callable[[str, Any], nn.Module]) -> list[str]:
    """Put ``make(name, module)`` in the place of each convolution for which ``where(name, module)`` holds.

    Convolutions are torch's ``Conv1d/2d/3d``, subclasses included, and Dcls layers. Everything is made
    before anything is replaced, so that an error leaves the model as it was; a module that is used in
    several places is made once.

    Returns:
        The names of what was replaced, in the order of ``model.named_modules()``.

    >>> model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3))
    >>> replace_convolutions(model, lambda name, conv: conv.in_channels == 8, lambda name, conv: nn.Identity())
    ['2']
    """
    _check_where(where)
    there = _convolutions(model)
    found = [(name, module) for name, module in there if where(name, module)]
    if not found:
        raise ValueError(
            f"where must hold for at least one convolution of the {type(model).__name__}, "
            f"got none of {_listed(there)}; "
            "pass a function that chooses, such as where=lambda name, module: max(module.kernel_size) > 1"
        )
    if found[0][0] == "":
        raise ValueError(
            f"model must hold its convolutions as parts, got a {type(model).__name__} that is one itself; "
            "use from_conv or to_conv of the layer"
        )
    made: dict[int, nn.Module] = {}
    for name, module in found:
        if id(module) not in made:
            made[id(module)] = new = make(name, module)
            if not isinstance(new, nn.Module):
                raise TypeError(f"make must return a torch.nn.Module, got {type(new).__name__} for {name}")
    for name, module in found:
        model.set_submodule(name, made[id(module)])
    return [name for name, _ in found]


def _convolutions(model: nn.Module) -> list[tuple[str, Convolution | DclsNd]]:
    """Each place where a convolution or Dcls layer is used; one used twice has two places."""
    check_model(model)
    parts = model.named_modules(remove_duplicate=False)
    return [(name, part) for name, part in parts if isinstance(part, Convolution | DclsNd)]


def _check_where(where: Any) -> None:
    if not callable(where):
        raise TypeError(f"where must be a function of (name, module), got {where!r}")


def _listed(there: Sequence[tuple[str, Convolution | DclsNd]]) -> str:
    """Places in words, a kind at a time."""
    names: dict[str, list[str]] = defaultdict(list)
    for name, module in there:
        names[_in_words(module)].append(name or "the model itself")
    kinds = [f"{len(of)} {kind} ({of[0]}{', ...' * (len(of) > 1)})" for kind, of in names.items()]
    return "; ".join(kinds) or "none that there are"


def _in_words(module: Convolution | DclsNd) -> str:
    if isinstance(module, DclsNd):
        size = "x".join(map(str, module.dilated_kernel_size))
        return f"{type(module).__name__} {size} / {module.kernel_count}, {module.interpolation.name}"
    return f"{type(module).__name__} {'x'.join(map(str, module.kernel_size))}"


@dataclass(frozen=True)
class Replaced:
    """A line of a :class:`Conversion`: one layer that was replaced.

    Attributes:
        name: of the layer in the model.
        before, after: the convolution and the layer in its place, in words.
        shared: the number of layers that share their positions with it, itself included.
        parameters_before, parameters_after: in the layer; a shared parameter counts in the first that has it.
        error: with ``start="fit"``, the distance between the dense kernel and the one it replaces, as a
            share of that one's norm; else None.
    """

    name: str
    before: str
    after: str
    shared: int
    parameters_before: int
    parameters_after: int
    error: float | None = None


class Conversion(list[Replaced]):
    """What :func:`to_dcls` did, a :class:`Replaced` for each layer; prints as a table."""

    def __str__(self) -> str:
        fitted = any(row.error is not None for row in self)
        rows = [("layer", "before", "after", "shared by", "parameters", "error"[: 5 * fitted])]
        for row in self:
            parameters = f"{row.parameters_before:,} -> {row.parameters_after:,}"
            error = "" if row.error is None else f"{row.error:.1e}"
            rows.append((row.name, row.before, row.after, str(row.shared), parameters, error))
        before, after = (sum(getattr(row, f"parameters_{side}") for row in self) for side in ("before", "after"))
        rows.append((f"{len(self)} layers", "", "", "", f"{before:,} -> {after:,}", ""))
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
        return "\n".join(lines)


def to_dcls(
    model: nn.Module,
    kernel_count: int = 26,
    dilated_kernel_size: int | tuple[int, ...] = 23,
    interpolation: str | Interpolation = "gauss",
    where: Where = is_depthwise,
    share: Share = "stage",
    start: Literal["random", "fit"] = "random",
) -> Conversion:
    """Replace convolutions of ``model`` by Dcls layers, in place: the paper's drop-in.

    Channels, stride, groups, bias and the shapes of all outputs stay. Convert before the optimiser is
    made: the parameters are new ones.

    Args:
        model: any module with convolutions in it, of one to three dimensions.
        kernel_count: elements in each kernel.
        dilated_kernel_size: the window in which they move.
        interpolation: a name, or an :class:`~torchdcls.Interpolation`.
        where: a function of (name, module) that chooses among the torch convolutions.
        share: ``"stage"`` gives the layers of one stage (:func:`~torchdcls.sharing.stage_of`) with equal
            shapes one ``position`` and one ``sigma``; None leaves each its own; a function of (name,
            module) makes those layers share for which it returns the same.
        start: ``"random"`` as the paper starts; ``"fit"`` places and weights the elements so that each dense
            kernel comes as close to the kernel it replaces as least squares can, and reports how close.

    Returns:
        A list of what was replaced, which prints as a table.

    >>> model = nn.Sequential(nn.Conv2d(3, 8, 1), nn.Conv2d(8, 8, 7, padding=3, groups=8))
    >>> print(to_dcls(model, kernel_count=6, dilated_kernel_size=15))
    layer     before      after                    shared by  parameters
    1         Conv2d 7x7  Dcls2d 15x15 / 6, gauss  1          400 -> 248
    1 layers                                                  400 -> 248
    """
    if start not in ("random", "fit"):
        raise ValueError(f"start must be 'random' or 'fit', got {start!r}")
    _check_where(where)
    interpolation = find_interpolation(interpolation)
    there = _convolutions(model)
    chosen = {name: part for name, part in there if isinstance(part, Convolution) and where(name, part)}
    converted = sum(isinstance(module, DclsNd) for _, module in there)
    if converted and not chosen:
        raise ValueError(
            f"model must have convolutions left to convert, got one with {converted} Dcls layers already; "
            "make the model anew, or pass where= for those that are left"
        )
    first = {id(conv): name for name, conv in reversed(chosen.items())}  # of the places where one is used
    originals = {name: conv for name, conv in chosen.items() if first[id(conv)] == name}
    layers: dict[str, DclsNd] = {}
    for name, conv in originals.items():
        with _naming(name):
            make = _LAYERS[len(conv.kernel_size)].from_conv
            layers[name] = make(conv, kernel_count, dilated_kernel_size, interpolation)
    groups = sharing_groups(layers.items(), share)
    errors: dict[str, float] = {}
    for group in groups:
        share_positions(layers[name] for name in group)
        if start == "fit":
            with _naming(*group):
                found = fit_elements_([layers[name] for name in group], [originals[name] for name in group])
            errors |= dict(zip(group, found, strict=True))
    replace_convolutions(model, lambda name, _: name in chosen, lambda _, conv: layers[first[id(conv)]])
    return _report(originals, layers, groups, errors)


@contextmanager
def _naming(*names: str) -> Iterator[None]:
    """Errors within it begin with the names of the layers that they are about."""
    try:
        yield
    except (TypeError, ValueError) as error:
        raise type(error)(f"{', '.join(names) or 'model'}: {error}") from error


def _report(
    originals: dict[str, Convolution], layers: dict[str, DclsNd], groups: list[list[str]], errors: dict[str, float]
) -> Conversion:
    group_of = {name: group for group in groups for name in group}
    rows = Conversion()
    for name, conv in originals.items():
        layer, group = layers[name], group_of[name]
        placed = {id(parameter) for parameter in layer.placement_parameters()} if name != group[0] else set()
        rows.append(
            Replaced(
                name,
                _in_words(conv),
                _in_words(layer),
                len(group),
                sum(parameter.numel() for parameter in conv.parameters()),
                sum(parameter.numel() for parameter in layer.parameters() if id(parameter) not in placed),
                errors.get(name),
            )
        )
    return rows


def matching_kernel_count(
    model: nn.Module, interpolation: str | Interpolation = "gauss", share: Share = "stage", where: Where = is_depthwise
) -> int:
    """The largest ``kernel_count`` with which :func:`to_dcls` adds no parameter, as the paper chooses it.

    >>> depthwise = nn.Conv2d(8, 8, 7, groups=8)  # 49 weights a kernel; an element has 5 parameters
    >>> matching_kernel_count(nn.Sequential(depthwise), "gauss")
    9
    """
    _check_where(where)
    chosen = {
        id(module): (name, module)
        for name, module in _convolutions(model)
        if isinstance(module, Convolution) and where(name, module)
    }
    if not chosen:
        raise ValueError(f"where must hold for at least one convolution, got none of {_listed(_convolutions(model))}")
    # Of one window, whichever, as to_dcls makes them: only layers of one window share.
    layers = {
        name: _LAYERS[len(conv.kernel_size)].from_conv(conv, 1, 1, interpolation) for name, conv in chosen.values()
    }
    taps = sum(conv.weight.numel() for _, conv in chosen.values())
    element = sum(layer.weight.numel() for layer in layers.values())
    for first, *_ in sharing_groups(layers.items(), share):
        element += sum(parameter.numel() for parameter in layers[first].placement_parameters())
    if element > taps:
        raise ValueError(
            f"model must have kernels with at least as many weights as an element has parameters, got {taps} weights "
            f"and {element} parameters for one {find_interpolation(interpolation).name} element in each kernel"
        )
    return taps // element


def fuse(model: Model) -> Model:
    """Replace every Dcls layer by the convolution that computes the same, in place; returns ``model``.

    What is left are :class:`~torchdcls.Conv1d`, ``Conv2d`` and ``Conv3d``, torch's own layers with another
    ``forward``: they export to ONNX and load as such. Fuse a copy to go on training.

    >>> from torchdcls import Dcls2d
    >>> fuse(nn.Sequential(Dcls2d(8, 8, kernel_count=5, dilated_kernel_size=9, groups=8)))
    Sequential(
      (0): Conv2d(8, 8, kernel_size=(9, 9), stride=(1, 1), groups=8)
    )
    """
    check_model(model)
    if not any(isinstance(module, DclsNd) for module in model.modules()):
        if any(placed_layers(model)):
            raise ValueError(
                "model must hold a Dcls layer to fuse, got layers of torchdcls.official; "
                "torchdcls.official.from_official(model) makes them such"
            )
        raise ValueError(
            f"model must hold a Dcls layer to fuse, got a {type(model).__name__} without one; "
            "it is a plain network already, or was never converted"
        )
    replace_convolutions(model, lambda name, part: isinstance(part, DclsNd), lambda name, layer: layer.to_conv())
    return model

"""Plain values, as YAML and the command line give them, to frozen dataclasses and back.

Every refusal names the key, what came and what would be right; an unknown key is answered with the nearest
known one.
"""

import dataclasses
import difflib
import re
import types
import typing
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, TypeVar, Union

import yaml

Built = TypeVar("Built")


def value(default: Any, help: str) -> Any:
    """A field of a dataclass with its default and the sentence that ``--help`` shows."""
    if isinstance(default, dict):
        return dataclasses.field(default_factory=lambda: dict(default), metadata={"help": help})
    return dataclasses.field(default=default, metadata={"help": help})


class _Loader(yaml.SafeLoader):  # type: ignore[misc]
    """YAML in which 1e-3, without a point, is a number; in YAML 1.1 it is a word."""


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?(\d+(\.\d*)?|\.\d+)[eE][-+]?\d+$"), list("-+.0123456789")
)


def read_yaml(text: str) -> Any:
    """What a text in YAML says.

    >>> read_yaml("{lr: 1e-3, betas: [0.9, 0.999], name: adamw}")
    {'lr': 0.001, 'betas': [0.9, 0.999], 'name': 'adamw'}
    """
    return yaml.load(text, _Loader)


def build(kind: type[Built], values: object, path: str = "") -> Built:
    """An instance of the dataclass ``kind`` from a mapping, each entry checked against its field's type.

    >>> @dataclasses.dataclass(frozen=True)
    ... class Schedule:
    ...     warmup: float = value(5.0, "epochs of warm-up")
    >>> build(Schedule, {"warmup": 20})
    Schedule(warmup=20.0)
    >>> build(Schedule, {"warm_up": 20})
    Traceback (most recent call last):
    ValueError: warm_up is not a value of a recipe; did you mean warmup?
    """
    if not isinstance(values, Mapping):
        raise TypeError(f"{path or 'a recipe'} must be a section with values of its own, got {values!r}")
    hints = typing.get_type_hints(kind)
    names = [field.name for field in dataclasses.fields(typing.cast(Any, kind))]
    for key in values:
        if key not in names:
            raise ValueError(f"{_join(path, str(key))} is not a value of a recipe{nearest(str(key), names, path)}")
    return kind(**{key: _convert(hints[key], given, _join(path, key)) for key, given in values.items()})


def plain(built: object) -> Any:
    """The mapping that :func:`build` makes the same dataclass from: nothing but what YAML knows."""
    if dataclasses.is_dataclass(built):
        return {field.name: plain(getattr(built, field.name)) for field in dataclasses.fields(built)}
    if isinstance(built, Mapping):
        return {key: plain(entry) for key, entry in built.items()}
    if isinstance(built, list | tuple):
        return [plain(entry) for entry in built]
    return built


def merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """``base`` with the entries of ``over``, section by section; an empty mapping takes a section's place.

    >>> merge({"a": {"b": 1, "c": 2}}, {"a": {"c": 3}}), merge({"a": {"b": 1}}, {"a": {}})
    ({'a': {'b': 1, 'c': 3}}, {'a': {}})
    """
    merged = dict(base)
    for key, entry in over.items():
        inside = merged.get(key)
        both = isinstance(entry, Mapping) and isinstance(inside, Mapping) and entry
        merged[key] = merge(typing.cast(Any, inside), entry) if both else entry
    return merged


def parse_overrides(words: Sequence[str]) -> dict[str, Any]:
    """Words ``section.key=value`` as nested mappings; what is after the sign is read as YAML.

    >>> parse_overrides(["optimizer.lr=1e-3", "dcls.kernel_count=match", "seed=2"])
    {'optimizer': {'lr': 0.001}, 'dcls': {'kernel_count': 'match'}, 'seed': 2}
    """
    nested: dict[str, Any] = {}
    for word in words:
        key, sign, text = word.partition("=")
        if not sign or not key:
            raise ValueError(f"values must be given as section.key=value, got {word!r}")
        try:
            entry: Any = read_yaml(text)
        except yaml.YAMLError as error:
            raise ValueError(f"{key} must be given as section.key=value with a value in YAML, got {text!r}") from error
        for part in reversed(key.split(".")):
            entry = {part: entry}
        nested = merge(nested, entry)
    return nested


def differences(first: object, second: object, path: str = "") -> Iterator[str]:
    """Each value in which two dataclasses differ, in words."""
    if isinstance(first, Mapping) and isinstance(second, Mapping):
        for key in dict.fromkeys([*first, *second]):
            yield from differences(first.get(key), second.get(key), _join(path, key))
    elif dataclasses.is_dataclass(first) or dataclasses.is_dataclass(second):
        yield from differences(plain(first), plain(second), path)
    elif first != second:
        yield f"{path} is {first!r} in the one, {second!r} in the other"


def described(kind: type, path: str = "") -> Iterator[tuple[str, str, str]]:
    """Each value of a recipe: its key, its type and default in words, and what it means."""
    hints = typing.get_type_hints(kind)
    for field in dataclasses.fields(typing.cast(Any, kind)):
        name, hint = _join(path, field.name), hints[field.name]
        inner = _dataclass_in(hint)
        if inner is not None:
            yield from described(inner, name)
            continue
        missing = field.default is dataclasses.MISSING
        default = "{}" if missing else yaml.safe_dump(plain(field.default), default_flow_style=True).split("\n")[0]
        yield name, f"{_in_words(hint)}, default {default}", str(field.metadata["help"])


def nearest(name: str, known: Iterable[str], path: str = "") -> str:
    """The end of a sentence that refuses ``name``: the nearest known name, or all of them."""
    known = list(known)
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    if close:
        return f"; did you mean {_join(path, close[0])}?"
    return f"; there are {', '.join(_join(path, each) for each in known)}"


def _join(path: str, key: str) -> str:
    return f"{path}.{key}" if path else key


def _dataclass_in(hint: Any) -> type | None:
    """The dataclass in ``Kind`` or ``Kind | None``."""
    return next((part for part in _parts(hint) if dataclasses.is_dataclass(part) and isinstance(part, type)), None)


def _parts(hint: Any) -> tuple[Any, ...]:
    return typing.get_args(hint) if typing.get_origin(hint) in (Union, types.UnionType) else (hint,)


def _convert(hint: Any, given: object, path: str) -> Any:
    inner = _dataclass_in(hint)
    if inner is not None and not (given is None and type(None) in _parts(hint)):
        return given if isinstance(given, inner) else build(inner, given, path)
    for part in _parts(hint):
        fits, converted = _as(part, given)
        if fits:
            return converted
    raise TypeError(f"{path} must be {_in_words(hint)}, got {given!r}")


def _as(hint: Any, given: object) -> tuple[bool, Any]:
    """Whether ``given`` is a value of that type, and that value."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is Literal:
        return given in arguments and not isinstance(given, bool), given
    if origin is tuple:
        if not isinstance(given, list | tuple):
            return False, None
        if arguments[-1] is not Ellipsis and len(given) != len(arguments):
            return False, None
        converted = [_as(arguments[0], entry) for entry in given]
        return all(fits for fits, _ in converted), tuple(entry for _, entry in converted)
    if origin is dict:
        return isinstance(given, Mapping) and all(isinstance(key, str) for key in given), given
    if hint is type(None):
        return given is None, None
    if hint is float:
        fits = isinstance(given, int | float) and not isinstance(given, bool)
        return fits, float(typing.cast(float, given)) if fits else None
    if hint is int:
        return isinstance(given, int) and not isinstance(given, bool), given
    return isinstance(given, hint), given


def _in_words(hint: Any) -> str:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if len(_parts(hint)) > 1:
        return " or ".join(_in_words(part) for part in _parts(hint))
    if origin is Literal:
        return " or ".join(repr(choice) for choice in arguments)
    if origin is tuple:
        many = "" if arguments[-1] is Ellipsis else f"{len(arguments)} "
        return f"a list of {many}{_in_words(arguments[0]).split(' ', 1)[1]}s"
    words = {float: "a number", int: "an integer", bool: "true or false", str: "a word", type(None): "null"}
    return "a mapping" if origin is dict else words.get(hint, getattr(hint, "__name__", str(hint)))

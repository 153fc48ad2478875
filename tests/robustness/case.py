"""One configuration: code that runs on its own, and what has to come of it."""

import dataclasses
import random
import re
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

import torchdcls
from torchdcls import Interpolation


def bell(x, width):
    """A profile of the user's own."""
    return torch.sigmoid(x / width) * torch.sigmoid(-x / width)


class Raw(str):
    """An argument that is written into the code as it stands."""

    def __repr__(self):
        return str(self)


# What the code of a case may use without an import.
NAMES: dict[str, Any] = {name: getattr(torchdcls, name) for name in torchdcls.__all__} | {
    "torch": torch,
    "nn": nn,
    "F": F,
    "own": Interpolation("own", bell, minimum_width=0.3, initial_sigma=0.2),
}


@dataclasses.dataclass
class Case:
    """A configuration.

    Attributes:
        family: what is tried.
        code: run first; leaves the names that `check` reads.
        check: of a valid case: raises where what came differs from the oracle's.
        clear: of an invalid case: one of these names must stand in the message.
    """

    family: str
    code: str
    check: Callable[[dict[str, Any]], None] | None = None
    clear: tuple[str, ...] = ()

    def run(self) -> str | None:
        """None if all went as it should, else the surprise in words."""
        namespace = dict(NAMES)
        try:
            exec(compile(self.code, f"<{self.family}>", "exec"), namespace)
            if self.check is not None:
                self.check(namespace)
        except (ValueError, TypeError) as error:
            if self.check is None and any(re.search(rf"\b{name}\b", str(error)) for name in self.clear):
                return None
            return f"{type(error).__name__}: {error}"
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        return None if self.check is not None else "no error"


def call(function: str, arguments: dict[str, Any]) -> str:
    """A call in code, with every argument by its name."""
    return f"{function}({', '.join(f'{name}={value!r}' for name, value in arguments.items())})"


class Draw(random.Random):
    """Random choices of one case."""

    def maybe(self, share: float = 0.5) -> bool:
        """True with that probability."""
        return self.random() < share

    def sizes(self, axes: int, low: int, high: int) -> tuple[int, ...]:
        """A whole number for each axis."""
        return tuple(self.randint(low, high) for _ in range(axes))

    def spelled(self, values: tuple[int, ...]) -> Any:
        """The same values in one of the forms that callers use: a tuple, a list, one number for all."""
        forms: list[Any] = [values, list(values)]
        return self.choice([*forms, values[0]] if len(set(values)) == 1 else forms)

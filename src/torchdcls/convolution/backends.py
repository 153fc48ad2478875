"""The backends, in one ordered tuple, and the choice between them."""

import functools
from typing import Protocol

import torch

from . import direct, mixed, plain, spectral
from .problem import Problem


class Backend(Protocol):
    """What every backend, a module of its own, answers."""

    NAME: str

    def why_not(self, problem: Problem) -> str | None:
        """The reason why it can't solve a problem, or None if it can."""

    def cost(self, problem: Problem) -> float:
        """About how many nanoseconds it needs for the convolution and the gradients asked for."""


# Of two that cost the same the first is taken.
BACKENDS: tuple[Backend, ...] = (plain, direct, spectral, mixed)


def choose(problem: Problem, backend: str = "auto") -> str:
    """The name of the cheapest backend that can, or ``backend`` if that one can, else an error that says why.

    >>> problem = Problem(8, 96, 96, 96, (56, 56), (51, 51), ((25, 25), (25, 25)), (1, 1), torch.float32)
    >>> choose(problem)
    'spectral'
    """
    # Compilers look through a cache, with a warning; they choose once a graph anyway.
    return (_choose if torch.compiler.is_compiling() else _choose_cached)(problem, backend)


def _choose(problem: Problem, backend: str) -> str:
    if backend == "auto":
        return min((b for b in BACKENDS if b.why_not(problem) is None), key=lambda b: b.cost(problem)).NAME
    check_backend(backend)
    reason = next(b for b in BACKENDS if backend == b.NAME).why_not(problem)
    if reason is not None:
        raise ValueError(f"backend {backend!r} can't do this convolution: {reason}")
    return backend


_choose_cached = functools.lru_cache(maxsize=4096)(_choose)


def check_backend(backend: str) -> None:
    """Raise if there is no backend of that name."""
    names = ["auto", *(b.NAME for b in BACKENDS)]
    if backend not in names:
        raise ValueError(f"backend must be one of {', '.join(names)}, got {backend!r}")

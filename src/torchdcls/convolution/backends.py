"""The backends, in one ordered tuple, and the choice between them."""

from typing import Protocol

from . import direct, mixed, plain, spectral
from .costs import estimate
from .problem import Problem


class Backend(Protocol):
    """What every backend, a module of its own, answers."""

    NAME: str

    def why_not(self, problem: Problem) -> str | None:
        """The reason why it can't solve a problem, or None if it can."""

    def cost(self, problem: Problem) -> float:
        """About how many nanoseconds it needs for the convolution and the gradients asked for."""


# An estimate may be off by that much, so torch's own is left only for what should be clearly faster.
_DOUBT = 1.15

BACKENDS: tuple[Backend, ...] = (plain, direct, spectral, mixed)


def choose(problem: Problem, backend: str = "auto") -> str:
    """The name of the cheapest backend that can, or ``backend`` if that one can, else an error that says why.

    >>> import torch
    >>> problem = Problem(8, 96, 96, 96, (56, 56), (51, 51), ((25, 25), (25, 25)), (1, 1), torch.float32)
    >>> choose(problem)
    'spectral'
    """
    if backend == "auto":
        able = [(_cost(b, problem), b.NAME) for b in BACKENDS if b.why_not(problem) is None]
        # Not `min`: where a compiler leaves sizes open, costs are expressions, which it can only compare.
        (cheapest, name), *others = able
        for cost, other in others:
            if cost < cheapest:
                cheapest, name = cost, other
        return name
    check_backend(backend)
    reason = next(b for b in BACKENDS if backend == b.NAME).why_not(problem)
    if reason is not None:
        raise ValueError(f"backend {backend!r} can't do this convolution: {reason}")
    return backend


def _cost(backend: Backend, problem: Problem) -> float:
    if backend is plain:
        return backend.cost(problem)
    calls = 1 + (problem.input_gradient or problem.kernel_gradient)
    return _DOUBT * (backend.cost(problem) + calls * estimate("operator", problem, 0, 0))


def check_backend(backend: str) -> None:
    """Raise if there is no backend of that name."""
    names = ["auto", *(b.NAME for b in BACKENDS)]
    if backend not in names:
        raise ValueError(f"backend must be one of {', '.join(names)}, got {backend!r}")

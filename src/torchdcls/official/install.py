"""``import DCLS.construct.modules`` made to find this package, for programs that can't be edited."""

import importlib.machinery
import sys
from types import ModuleType

from . import kernels, layers

_NAMES = ("DCLS", "DCLS.construct", "DCLS.construct.modules", "DCLS.construct.modules.Dcls")
_MARK = "__torchdcls__"


def install() -> None:
    """Let ``DCLS.construct.modules``, and ``.Dcls`` in it, be the layers of :mod:`torchdcls.official`.

    Call it before anything imports ``DCLS``; it then need not be installed. A second call changes nothing.
    """
    there = sorted(name for name in sys.modules if name.partition(".")[0] == "DCLS")
    if any(hasattr(sys.modules[name], _MARK) for name in there):
        return
    if there:
        raise RuntimeError(
            f"install() must come before the official package is imported, got {there[0]} from "
            f"{getattr(sys.modules[there[0]], '__file__', None)} already there; call it first in the program"
        )
    public = {
        name: value
        for module in (kernels, layers)
        for name, value in vars(module).items()
        if name.lstrip("_").startswith(("Dcls", "ConstructKernel"))
    }
    for name in _NAMES:
        module = ModuleType(name, "The layers of torchdcls.official under their official name.")
        module.__spec__ = importlib.machinery.ModuleSpec(name, None, is_package=True)
        module.__path__ = []
        setattr(module, _MARK, True)
        if name.startswith("DCLS.construct.modules"):
            vars(module).update(public)
        sys.modules[name] = module
        parent, _, own = name.rpartition(".")
        if parent:
            setattr(sys.modules[parent], own, module)

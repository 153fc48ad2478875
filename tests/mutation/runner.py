"""Run one mutant: a child process forked from one that has imported torch already, with the changed module in place."""

import contextlib
import importlib.abc
import importlib.util
import os
import signal
import sys
import time
import types
from collections.abc import Sequence

PACKAGE = "torchdcls"
# What tests import and is slow to: once, in the parent.
HEAVY = (
    "torch",
    "torch._dynamo",
    "torch.distributed.fsdp",
    "hypothesis",
    "numpy",
    "pytest",
    "timm",
    "safetensors.torch",
)


def prepare() -> None:
    """Import what is slow; nothing of the package, which each child imports with its own fault."""
    for name in (*HEAVY, "timm.optim", "timm.scheduler", "torchvision", "xdist", "torch.testing", "scipy"):
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    sys.modules["torch"].set_num_threads(1)
    # A module that timm or a plug-in of pytest has pulled in would be the one without the fault.
    loaded = [name for name in sys.modules if name.split(".")[0] in (PACKAGE, "tests")]
    for name in loaded:
        if not name.startswith("tests.mutation") and name != "tests":
            raise RuntimeError(f"{name} is loaded before the fault is put in")


class Fault(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Gives a module its changed code."""

    def __init__(self, module: str, path: str, code: types.CodeType) -> None:
        self.module, self.path, self.code = module, path, code

    def find_spec(self, name, path=None, target=None):
        """The changed module, if that is the one."""
        if name == self.module:
            return importlib.util.spec_from_file_location(name, self.path, loader=self)
        return None

    def create_module(self, spec):
        """As usual."""
        return

    def exec_module(self, module):
        """Run the changed code."""
        exec(self.code, module.__dict__)


def run(fault: Fault | None, tests: Sequence[str], seconds: float) -> tuple[str, float]:
    """Tests in a child: "killed" if one fails, "survived" if all pass, "timeout"; and how long they took."""
    begin = time.monotonic()
    child = os.fork()
    if child == 0:
        _child(fault, tests)
    while True:
        done, status = os.waitpid(child, os.WNOHANG)
        taken = time.monotonic() - begin
        if done:
            break
        if taken > seconds:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return "timeout", taken
        time.sleep(0.01)
    code = os.waitstatus_to_exitcode(status)
    return ("survived" if code == 0 else "killed"), taken


def _child(fault: Fault | None, tests: Sequence[str]) -> None:
    """Never returns."""
    code = 70
    try:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        if fault is not None or not os.environ.get("MUTATION_VERBOSE"):
            os.dup2(nowhere, 1)
            os.dup2(nowhere, 2)
        os.setpgid(0, 0)
        if fault is not None:
            sys.meta_path.insert(0, fault)
        import pytest

        # Plug-ins that the parent has imported are not rewritten any more, which does not matter here.
        options = ["-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-W", "ignore:Module already imported"]
        code = int(pytest.main([*options, *tests]))
    finally:
        os._exit(code)

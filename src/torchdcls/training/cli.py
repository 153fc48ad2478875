"""The command line: ``torchdcls COMMAND ...`` or ``python -m torchdcls COMMAND ...``."""

import argparse
import importlib
import re
import sys
from collections.abc import Sequence
from types import ModuleType

from .._version import __version__

# Each command is a module of this package with add_arguments(parser) and run(arguments) -> exit status or None; it
# is imported only when it is called, because Lightning takes seconds to load.
COMMANDS = (
    ("train", "one run from a recipe"),
    ("evaluate", "a checkpoint, fused model or ONNX file on a data set: loss, top-1, top-5"),
    ("compare", "the paper's table: models x interpolations x seeds, t-tests, figures, a report"),
    ("plot", "kernels, profiles, positions over training, results of a comparison"),
    ("export", "a checkpoint to a plain fused network: safetensors and ONNX"),
)
# A word such as optimizer.lr=1e-3, which may stand anywhere on the line of a command that has an argument `overrides`.
_OVERRIDE = re.compile(r"[A-Za-z_]\w*(\.\w+)*=.*", re.DOTALL)
_TRAIN = ("timm", "lightning", "yaml", "mlxtend", "scipy", "matplotlib", "tensorboard", "safetensors", "numpy")
_PAGES = ("PIL", "jinja2")
_EXPORT = ("onnx", "onnxruntime", "onnxscript")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status."""
    words = list(sys.argv[1:] if argv is None else argv)
    top = argparse.ArgumentParser(
        prog="torchdcls",
        description="Train, evaluate and compare networks with learnable tap positions.",
        epilog="commands:\n" + "\n".join(f"  {name:10} {text}" for name, text in COMMANDS),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    top.add_argument("--version", action="version", version=f"torchdcls {__version__}")
    top.add_argument("command", choices=[name for name, _ in COMMANDS], metavar="COMMAND", help="one of the below")
    name: str = top.parse_args(words[:1]).command
    try:
        command, arguments = parse(name, words[1:])
        return command.run(arguments) or 0
    except ModuleNotFoundError as error:
        missing = (error.name or "").split(".")[0]
        if missing not in (*_TRAIN, *_PAGES, *_EXPORT):
            raise
        extra = "export" if missing in _EXPORT else "train"
        print(f"torchdcls {name} needs {missing}: pip install 'torchdcls[{extra}]'", file=sys.stderr)
    except (ValueError, TypeError, OSError, FloatingPointError) as error:
        # What a user can set right is one sentence; everything else keeps its traceback.
        print(f"torchdcls {name}: {_sentence(error)}", file=sys.stderr)
    return 1


def _sentence(error: Exception) -> str:
    """What an error says; where it comes from another process, without that one's traceback."""
    text = str(error).strip()
    return text.splitlines()[-1].partition("Error: ")[2] if text.startswith("Caught ") else text


def parse(name: str, words: list[str]) -> tuple[ModuleType, argparse.Namespace]:
    """The module of a command, and its arguments."""
    command: ModuleType = importlib.import_module(f".{name}", __package__)
    parser = argparse.ArgumentParser(
        prog=f"torchdcls {name}", description=command.__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    command.add_arguments(parser)
    overrides: list[str] = []
    if "overrides" in {action.dest for action in parser._actions}:
        overrides = [word for word in words if _OVERRIDE.fullmatch(word)]
        words = [word for word in words if not _OVERRIDE.fullmatch(word)]
    arguments = parser.parse_args(words)
    if overrides:
        arguments.overrides = overrides
    return command, arguments


if __name__ == "__main__":
    sys.exit(main())

"""``python -m torchdcls.official convert in.pth out.safetensors``: an official checkpoint as a native one."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from .files import convert
from .kernels import VERSIONS


def main(arguments: Sequence[str] | None = None) -> None:
    """Read the command line and convert."""
    parser = argparse.ArgumentParser(prog="python -m torchdcls.official", description=__doc__)
    commands = parser.add_subparsers(required=True)
    command = commands.add_parser("convert", help="write the native state dict of an official checkpoint")
    command.add_argument("source", type=Path, help="what the training program saved: .pth, .pt or .safetensors")
    command.add_argument("target", type=Path, help="what to write: .safetensors, .pth or .pt")
    command.add_argument("--version", choices=VERSIONS, help="of the layers, where the tensors do not tell")
    command.add_argument(
        "--size", type=int, nargs="+", metavar="N", help="dilated_kernel_size of the 2-D or 3-D layers, if not square"
    )
    command.add_argument(
        "--v0-width-first", action="store_true", help="2-D v0 checkpoints from before late 2023: row 0 is the width"
    )
    options = parser.parse_args(arguments)
    try:
        converted = convert(
            options.source,
            options.target,
            version=options.version,
            dilated_kernel_size=options.size,
            v0_width_first=options.v0_width_first,
        )
    except (OSError, ValueError) as error:
        sys.exit(f"{parser.prog}: {error}")
    positions = {key: value for key, value in converted.items() if key.rpartition(".")[2] == "position"}
    for key, value in positions.items():
        print(f"{key.removesuffix('.position')}: positions {tuple(value.shape)}")
    print(f"{len(positions)} layers, {len(converted)} tensors in {options.target}")
    if options.size is None and any(value.shape[0] > 1 for value in positions.values()):
        print("Windows were taken as square where the checkpoint does not tell; if they are not, pass --size.")


if __name__ == "__main__":
    main()

"""`python -m tests.distribution`: build sdist and wheel, check both, install the wheel elsewhere and use it there.

The environment is new and holds what the wheel declares and nothing else. torch alone is not downloaded again, which
would be gigabytes: it and what it requires in turn are linked from the environment that this runs in, so pip finds
the requirement met. Everything else that this environment has, the sources of the project too, is out of sight.
"""

import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
DIST = ROOT / "dist"
HERE = Path(__file__).parent


def run(*command: object, folder: Path = ROOT) -> str:
    """A command that must succeed; its output."""
    print("$", *(str(word).replace(str(ROOT) + "/", "") for word in command), flush=True)
    hidden = {"PYTHONPATH", "VIRTUAL_ENV", "PYTHONHOME"}
    environment = {name: value for name, value in os.environ.items() if name not in hidden}
    result = subprocess.run(
        [*map(str, command)], cwd=folder, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    if result.returncode:
        raise SystemExit(f"{result.stdout}\nfailed with status {result.returncode}")
    return result.stdout


def with_requirements(name: str, found: dict[str, importlib.metadata.Distribution]) -> None:
    """A distribution and all that it requires, into ``found``."""
    key = re.sub(r"[-_.]+", "-", name).lower()
    if key in found:
        return
    found[key] = importlib.metadata.distribution(name)
    for line in found[key].requires or ():
        requirement = Requirement(line)
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            with_requirements(requirement.name, found)


def link(name: str, folder: Path) -> None:
    """Links to a distribution and its requirements in a folder, which then can stand for its site-packages."""
    found: dict[str, importlib.metadata.Distribution] = {}
    with_requirements(name, found)
    folder.mkdir()
    for distribution in found.values():
        site = Path(str(distribution.locate_file("")))
        for part in sorted(
            {file.parts[0] for file in distribution.files or () if file.parts[0] not in ("..", "__pycache__")}
        ):
            if not (folder / part).exists():
                (folder / part).symlink_to(site / part)


def main() -> None:
    """Stops at the first thing that is wrong."""
    for folder in (DIST, ROOT / "build"):
        shutil.rmtree(folder, ignore_errors=True)
    run(sys.executable, "-m", "build", "--outdir", DIST)
    files = sorted(DIST.iterdir())
    print(run(sys.executable, "-m", "twine", "check", "--strict", *files))
    (wheel,) = DIST.glob("*.whl")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        venv.create(folder / "clean", with_pip=True)
        python = folder / "clean" / "bin" / "python"
        link("torch", folder / "torch-only")
        (site,) = (folder / "clean" / "lib").glob("python*/site-packages")
        (site / "torch.pth").write_text(f"{folder / 'torch-only'}\n")
        constraints = ROOT / "constraints.txt"
        run(python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-c", constraints, wheel)
        shutil.copy(HERE / "smoke.py", folder)
        print(run(python, "smoke.py", folder=folder))
        for command in ([python, "-m", "torchdcls"], [folder / "clean" / "bin" / "torchdcls"]):
            print(run(*command, "--version", folder=folder))
        # A type checker that looks at the clean environment must see the types of what was installed there.
        shutil.copy(HERE / "typed.py", folder)
        check = [
            sys.executable,
            "-m",
            "mypy",
            "--strict",
            "--python-executable",
            python,
            "--cache-dir",
            folder / "cache",
        ]
        print(run(*check, "typed.py", folder=folder))
    print("dist:", *(f"{file.name} {file.stat().st_size:,} bytes" for file in files), sep="\n  ")


if __name__ == "__main__":
    main()

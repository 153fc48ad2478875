"""The package as a whole: what it imports, in which order, and what its pages say."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import torchdcls

SOURCE = Path(torchdcls.__file__).parent
ROOT = Path(__file__).parent.parent
# From the design: a module may import those before it.
ORDER = [
    "_version",
    "interpolation",
    "kernel",
    "convolution",
    "layers",
    "sharing",
    "fitting",
    "parameter_groups",
    "surgery",
    "official",
    "models",
    "plots",
    "training",
    "__main__",
]
OPTIONAL = ["timm", "lightning", "matplotlib", "scipy", "onnx", "numpy", "yaml", "torchvision", "safetensors"]


def imported_modules(path):
    """Top-level names inside the package that a file imports, wherever in it."""
    package = ("torchdcls", *path.relative_to(SOURCE).parts[:-1])
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            full = (*base, *(node.module or "").split("."))
            names = [(*full, alias.name) for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [tuple(alias.name.split(".")) for alias in node.names]
        else:
            continue
        for name in names:
            parts = [part for part in name if part]
            if parts[0] == "torchdcls" and len(parts) > 1:
                yield parts[1]


@pytest.mark.parametrize("path", sorted(SOURCE.rglob("*.py")), ids=lambda p: str(p.relative_to(SOURCE)))
def test_imports_point_downward(path):
    own = path.relative_to(SOURCE).parts[0].removesuffix(".py")
    if own == "__init__":
        return
    allowed = set(ORDER[: ORDER.index(own) + 1])
    assert set(imported_modules(path)) <= allowed, f"{own} may import {sorted(allowed)}"


def test_importing_needs_torch_alone():
    loaded = "sorted(name.split('.')[0] for name in sys.modules)"
    script = f"import sys, torch; before = set({loaded}); import torchdcls; print(*(set({loaded}) - before))"
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert not set(result.stdout.split()) & set(OPTIONAL), result.stdout
    blocked = "; ".join(f"sys.modules[{name!r}] = None" for name in OPTIONAL if name != "numpy")
    subprocess.run([sys.executable, "-c", f"import sys; {blocked}; import torchdcls"], check=True)


def test_every_module_has_tests():
    tested = {path.stem.removeprefix("test_") for path in (ROOT / "tests").glob("test_*.py")}
    modules = {p.relative_to(SOURCE).parts[0].removesuffix(".py") for p in SOURCE.rglob("*.py")}
    assert {m for m in modules if not m.startswith("_")} <= tested


def test_files_stay_readable():
    long = {p.name: n for p in SOURCE.rglob("*.py") if (n := len(p.read_text().splitlines())) > 340}
    assert not long


def code_blocks(page):
    return re.findall(r"^```python\n(.*?)^```", page.read_text(), flags=re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("page", [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))], ids=lambda p: p.name)
def test_code_on_the_pages_runs(page, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    namespace = {"__name__": "__page__"}
    for block in code_blocks(page):
        exec(compile(block, str(page), "exec"), namespace)

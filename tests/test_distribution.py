"""What is in the wheel and in the citation; `make dist` also installs and uses it."""

import email
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import yaml

import torchdcls

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Built without isolation, so without a network, from a copy, so that nothing is left in the tree."""
    folder = tmp_path_factory.mktemp("tree")
    for name in ("pyproject.toml", "README.md", "LICENSE", "MANIFEST.in"):
        shutil.copy(ROOT / name, folder)
    shutil.copytree(ROOT / "src", folder / "src", ignore=shutil.ignore_patterns("*.egg-info", "__pycache__"))
    build = "from setuptools import build_meta; print(build_meta.build_wheel('.'))"
    result = subprocess.run([sys.executable, "-c", build], cwd=folder, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    with zipfile.ZipFile(folder / result.stdout.split()[-1]) as opened:
        yield opened


def test_the_wheel_holds_the_package_and_nothing_else(wheel):
    names = set(wheel.namelist())
    information = f"torchdcls-{torchdcls.__version__}.dist-info/"
    ours = {name for name in names if not name.startswith(information)}
    source = {
        path.relative_to(ROOT / "src").as_posix()
        for path in (ROOT / "src" / "torchdcls").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert ours == source
    assert "torchdcls/py.typed" in ours
    recipes = {path.name for path in (ROOT / "src/torchdcls/training/recipes").glob("*.yaml")}
    assert recipes
    assert {f"torchdcls/training/recipes/{name}" for name in recipes} <= ours
    assert f"{information}licenses/LICENSE" in names


def test_the_metadata_say_what_a_user_must_know(wheel):
    (name,) = (name for name in wheel.namelist() if name.endswith("METADATA"))
    metadata = email.message_from_bytes(wheel.read(name))
    assert metadata["Version"] == torchdcls.__version__
    assert metadata["License-Expression"] == "MIT"
    assert metadata["Description-Content-Type"] == "text/markdown"
    assert metadata["Requires-Python"] == ">=3.10"
    required = [line for line in metadata.get_all("Requires-Dist") if "extra ==" not in line]
    assert required == ["torch>=2.8"]
    assert set(metadata.get_all("Provides-Extra")) >= {"models", "train", "plots", "export"}
    assert {line.split(", ")[0] for line in metadata.get_all("Project-URL")} >= {"Paper", "First paper"}
    assert "Typing :: Typed" in metadata.get_all("Classifier")
    (scripts,) = (name for name in wheel.namelist() if name.endswith("entry_points.txt"))
    assert wheel.read(scripts).decode().split() == [
        "[console_scripts]",
        "torchdcls",
        "=",
        "torchdcls.training.cli:main",
    ]


AUTHORS = [("Ismail", "Khalfaoui-Hassani"), ("Thomas", "Pellegrini"), ("Timothée", "Masquelier")]


def test_the_citation_names_the_authors_of_the_method():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    required = {"cff-version", "message", "title", "authors"}  # by the format's schema
    assert required <= set(citation)
    assert citation["cff-version"] == "1.2.0"
    assert citation["version"] == torchdcls.__version__
    assert citation["license"] == "MIT"
    preferred, first = citation["preferred-citation"], citation["references"][0]
    for reference in (preferred, first):
        assert {"type", "title", "authors"} <= set(reference)
        assert reference["type"] in ("article", "conference-paper")
        assert [(author["given-names"], author["family-names"]) for author in reference["authors"]] == AUTHORS
        assert reference["year"] == 2023
        assert re.fullmatch(r"https://arxiv\.org/abs/\d{4}\.\d{5}", reference["url"])
        assert reference["identifiers"][0]["value"] == f"arXiv:{reference['url'].rsplit('/', 1)[1]}"
    assert preferred["title"] == "Dilated Convolution with Learnable Spacings: beyond bilinear interpolation"
    assert first["title"] == "Dilated Convolution with Learnable Spacings"

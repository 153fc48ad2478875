"""Build the site whole or not at all: `python -m docs.tools.build`.

Zensical renders; this adds the font of the equations, and checks what strict mode lets pass: warnings about
docstrings, pages that the navigation lacks or invents, and anything that a reader's browser would have to fetch
from elsewhere.
"""

import re
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import tomllib
from fontTools.subset import main as subset

ROOT = Path(__file__).parent.parent.parent
_EXPECTED = ("Build started", "No issues found", "Build finished in")
# Where in zensical it ended tells nothing about the pages.
_NOISE = re.compile(r"Traceback \(most recent call last\):\n(?: .*\n|\n)*(?:.*Aborted because --strict flag is set)?")
_COLOR = re.compile(r"\x1b\[[0-9;]*m")
_FETCHED = re.compile(r"<(?:script|link|img|iframe|source)\b[^>]*?\b(?:src|href)=[\"']?(?:https?:)?//[^\s\"'>]+")
_FETCHED_BY_STYLE = re.compile(r"(?:url\(|@import)\s*[\"']?(?:https?:)?//[^\s\"')]+")
_CODE = re.compile(r"<(code|pre|script|style)\b.*?</\1>", re.DOTALL)
_LATEX = re.compile(r"\$[^$<\n]*\\[A-Za-z][^$<\n]*")
# Latin, Greek, punctuation, arrows, operators, brackets; upright, italic and script letters of formulas.
_GLYPHS = (
    "U+20-7E,U+A0-FF,U+391-3F5,U+2010-2044,U+20D7,U+2100-214F,U+2190-21D5,U+2200-22FF,U+2308-230B,U+23DE-23DF,"
    "U+27E8-27E9,U+1D434-1D467,U+1D49C-1D4CF,U+1D6E2-1D71B"
)


def problems(root: Path) -> Iterator[str]:
    """Build the site of ``root/zensical.toml``; yields everything that is wrong with it, in sentences."""
    project = tomllib.loads((root / "zensical.toml").read_text())["project"]
    command = [sys.executable, "-m", "zensical", "build", "--clean", "--strict"]
    built = subprocess.run(command, cwd=root, capture_output=True, text=True)
    said = _COLOR.sub("", built.stdout + built.stderr)
    if built.returncode:
        yield _NOISE.sub("", said).strip()
        return
    yield from (line for line in said.splitlines() if line.strip() and not line.startswith(_EXPECTED))
    write_font(root / "site" / "stix-two-math.woff")
    pages = {str(page.relative_to(root / "docs")) for page in (root / "docs").rglob("*.md")}
    listed = list(_pages(project["nav"]))
    yield from (f"docs/{page} must be in the navigation, in zensical.toml" for page in sorted(pages - set(listed)))
    yield from (f"the navigation names docs/{page}, which is not there" for page in listed if page not in pages)
    for file in sorted((root / "site").rglob("*")):
        if file.suffix in (".html", ".css"):
            text = file.read_text()
            pattern = _FETCHED if file.suffix == ".html" else _FETCHED_BY_STYLE
            for found in pattern.findall(text):
                yield f"{file.relative_to(root)} must load nothing from elsewhere, got {found}"
            for found in _LATEX.findall(_CODE.sub("", text)):
                yield f"{file.relative_to(root)} must show maths, got {found}; in a table write \\lvert for |"


def write_font(path: Path) -> None:
    """Write the part of STIX Two Math that the equations need; the package that draws with it brings it along."""
    found = find_spec("ziamath")  # its place is enough; the package itself need not be imported
    if found is None or found.origin is None:
        raise ModuleNotFoundError("the equations' font comes with ziamath, which is not installed")
    font = Path(found.origin).parent / "fonts" / "STIXTwoMath-Regular.ttf"
    subset([str(font), f"--unicodes={_GLYPHS}", "--flavor=woff", "--layout-features=*", f"--output-file={path}"])


def _pages(navigation: Any) -> Iterator[str]:
    """The pages that a navigation lists, at any depth."""
    if isinstance(navigation, str):
        yield navigation
    else:
        for part in navigation.values() if isinstance(navigation, dict) else navigation:
            yield from _pages(part)


def main() -> int:
    """Print what is wrong, or where the site is."""
    found = list(problems(ROOT))
    for problem in found:
        print(problem, file=sys.stderr)
    if not found:
        print(f"{ROOT / 'site' / 'index.html'} is ready; for the search: python -m http.server -d site")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())

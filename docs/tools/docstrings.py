"""A Markdown extension: docstrings as Python programmers write them, shown as they mean it.

Lines from ``>>>`` to the next blank one are a block of code, and roles such as ``:func:`fuse``` are code that
links to the page on which a public name is explained. Fenced code is left alone.
"""

import ast
import re
from pathlib import Path
from typing import Any

from markdown import Markdown
from markdown.extensions import Extension
from markdown.preprocessors import Preprocessor

PACKAGE = Path(__file__).parent.parent.parent / "src" / "torchdcls" / "__init__.py"
_ROLE = re.compile(r":(?:class|func|meth|mod|attr|data):`(~?)([\w.]+)`")


def public_names() -> list[str]:
    """``torchdcls.__all__``, read without an import of torch."""
    for node in ast.parse(PACKAGE.read_text()).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return list(ast.literal_eval(node.value))
    raise ValueError(f"{PACKAGE} must have an __all__, got none")


class _Docstrings(Preprocessor):
    def __init__(self, md: Markdown) -> None:
        super().__init__(md)
        self.public = set(public_names())

    def run(self, lines: list[str]) -> list[str]:
        result: list[str] = []
        fence = ""  # what closes the block that is open, "" outside of any
        for line in lines:
            opens = re.match(r"\s*(`{3,}|~{3,})", line)
            if fence == ">>>" and not line.strip():
                result.append("```")
                fence = ""
            elif fence:
                if opens and line.strip() == fence:
                    fence = ""
            elif opens:
                fence = opens[1]
            elif line.startswith(">>> "):
                result.append("```pycon")
                fence = ">>>"
            else:
                line = _ROLE.sub(self._link, line)
            result.append(line)
        return [*result, "```"] if fence == ">>>" else result

    def _link(self, role: re.Match[str]) -> str:
        short, target = role.groups()
        *owner, name = target.split(".")
        shown = name if short or owner == ["torchdcls"] else target
        if name in self.public and owner in ([], ["torchdcls"]):
            # What is named as its module would be taken for that.
            place = f"{name}.{name}" if PACKAGE.with_name(f"{name}.py").exists() else name
            return f"[`{shown}`][torchdcls.{place}]"
        return f"`{shown}`"


class DocstringsExtension(Extension):
    """Works on the lines before code blocks are looked for."""

    def extendMarkdown(self, md: Markdown) -> None:  # noqa: N802
        """Register with ``md``: once line ends are even, before fences."""
        md.preprocessors.register(_Docstrings(md), "docstrings", 29)


def makeExtension(**options: Any) -> DocstringsExtension:  # noqa: N802
    """What Markdown calls with the name of this module."""
    return DocstringsExtension(**options)

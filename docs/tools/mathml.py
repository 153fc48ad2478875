r"""A Markdown extension: ``$...$`` and ``$$...$$`` become MathML while the site is built.

Browsers draw MathML by themselves, so that a page with equations needs no script and no font from elsewhere.
The dollar signs are those that GitHub and editors show as maths, too.
"""

import re
from typing import Any
from xml.etree.ElementTree import Element, SubElement

from latex2mathml.converter import convert
from markdown import Markdown
from markdown.blockprocessors import BlockProcessor
from markdown.extensions import Extension
from markdown.inlinepatterns import InlineProcessor

# A dollar sign opens before and closes after what is no space, so that prices stay prices.
_INLINE = r"(?<![\\\w$])\$(?!\s|\$)([^$\n]*?[^\s$\\])\$(?![\w$])"
_UNKNOWN = re.compile(r"<m[ion]>(\\\w+|&)</m[ion]>")


def to_mathml(latex: str, display: str) -> str:
    """LaTeX as MathML, ``display`` being ``"inline"`` or ``"block"``; what is not understood is an error."""
    # In tables bars are written so, because a pipe ends a cell; the converter would set them too wide.
    latex = latex.replace(r"\lvert", r"\left|").replace(r"\rvert", r"\right|")
    mathml: str = convert(" ".join(latex.split()), display=display)
    if unknown := _UNKNOWN.search(mathml):
        raise ValueError(f"maths must be of commands that latex2mathml knows, got {unknown[1]} in {latex.strip()!r}")
    # An arrangement of rows is set small by default; a fraction in one is then hard to read.
    return mathml.replace("<mtable>", '<mtable displaystyle="true">') if display == "block" else mathml


class _Inline(InlineProcessor):
    def handleMatch(self, m: re.Match[str], data: str) -> tuple[str, int, int]:  # type: ignore[override]  # noqa: N802
        return self.md.htmlStash.store(to_mathml(m[1], "inline")), m.start(0), m.end(0)


class _Block(BlockProcessor):
    def test(self, parent: Element, block: str) -> bool:
        return block.startswith("$$") and block.rstrip().endswith("$$") and len(block.strip()) > 4

    def run(self, parent: Element, blocks: list[str]) -> None:
        latex = blocks.pop(0).strip()[2:-2]
        markup = f'<div class="equation">{to_mathml(latex, "block")}</div>'
        SubElement(parent, "p").text = self.parser.md.htmlStash.store(markup)


class MathmlExtension(Extension):
    """Puts both processors where no other sees the LaTeX first."""

    def extendMarkdown(self, md: Markdown) -> None:  # noqa: N802
        """Register with ``md``: after code in backticks, before escapes."""
        md.inlinePatterns.register(_Inline(_INLINE, md), "mathml", 185)
        md.parser.blockprocessors.register(_Block(md.parser), "mathml", 90)


def makeExtension(**options: Any) -> MathmlExtension:  # noqa: N802
    """What Markdown calls with the name of this module."""
    return MathmlExtension(**options)

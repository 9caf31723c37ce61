"""The code blocks of the documentation: fenced ones by language, and indented ones."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
_FENCED = re.compile(r"^( *)```(\w*)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
_INDENTED = re.compile(r"(?:^|\n\n)((?: {4,}\S[^\n]*\n(?:[ \t]*\n(?= {4}))*)+)")
_ITEM = re.compile(r"\s*([-*]|\d+\.)\s")


class Block(NamedTuple):
    """`language` is empty for an indented block."""

    page: str
    language: str
    text: str


def pages() -> list[Path]:
    """README and every page of docs, but the decisions: these say what was true then."""
    found = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
    return [path for path in found if "decisions" not in path.parts]


def blocks() -> Iterator[Block]:
    """Yield every code block, dedented."""
    for path in pages():
        page, text = str(path.relative_to(ROOT)), path.read_text(encoding="utf-8")
        for match in _FENCED.finditer(text):
            yield Block(page, match[2], textwrap.dedent(match[3]))
        for match in _INDENTED.finditer(_FENCED.sub("", text)):
            if not _ITEM.match(match[1]):
                yield Block(page, "", textwrap.dedent(match[1]))


def commands() -> Iterator[tuple[str, str]]:
    """Yield page and line of every shell command, with its continued lines, without its comment."""
    for block in blocks():
        if block.language in ("", "bash"):
            for line in re.sub(r"\\\n\s*", "", block.text).splitlines():
                yield block.page, re.split(r"\s{2,}#|\s#\s", line.strip())[0].strip()

"""A hook of mkdocs: a page that is named in code, as `docs/upgrading.md` or `decisions/0034`, becomes a link.

So the pages read well as plain text, too. A name of a page that does not exist stops a strict build.
"""

from __future__ import annotations

import logging
import os
import re
from pathlib import Path, PurePosixPath
from typing import Any, Final

log = logging.getLogger("mkdocs.hooks")  # a warning there stops a strict build

DOCS: Final = Path(__file__).resolve().parent
_NAMED: Final = re.compile(r"(?<!\[)`((?:docs/|\.\./)?[\w./-]*(?:\.md|decisions/\d{4}|runbooks))`(?!\])")
_FENCE: Final = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
ELSEWHERE: Final = frozenset({"README.md", "CHANGELOG.md", "CONTRIBUTING.md"})
"""Pages of the repository that the site does not have."""


def page_of(name: str, of: str) -> str | None:
    """Return the page that `name` means in the page `of`, as a path below docs; None if there is none.

    A name is looked for beside the page first, then from docs."""
    plain = name.removeprefix("docs/")
    if plain.endswith("runbooks"):
        return "operations.md"
    for start in (PurePosixPath(of).parent, PurePosixPath()):
        path = os.path.normpath(start / plain)
        if re.search(r"decisions/\d{4}$", path):
            found = sorted(DOCS.glob(f"{path}-*.md"))
            if found:
                return found[0].relative_to(DOCS).as_posix()
        elif (DOCS / path).is_file() and not path.startswith(".."):
            return path
    return None


def _words(page: str) -> str:
    """What the link says: the page's title; a decision, by its number."""
    decision = re.match(r"decisions/(\d{4})-", page)
    if decision:
        return f"decision {decision[1]}"
    title = re.search(r"^# (.+)$", (DOCS / page).read_text(encoding="utf-8"), re.MULTILINE)
    return title[1] if title else page


def linked(text: str, of: str) -> tuple[str, list[str]]:
    """Return the page's text with its links, and the names that mean no page."""
    unknown: list[str] = []

    def link(match: re.Match[str]) -> str:
        name = match[1]
        if name in ELSEWHERE:
            return match[0]
        page = page_of(name, of)
        if page is None:
            unknown.append(name)
            return match[0]
        return f"[{_words(page)}]({os.path.relpath(page, PurePosixPath(of).parent)})"

    fences = [match.group() for match in _FENCE.finditer(text)]
    prose = _FENCE.split(text)
    done = [_NAMED.sub(link, part) for part in prose]
    return "".join(part + fence for part, fence in zip(done, [*fences, ""], strict=True)), unknown


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Called by mkdocs for each page."""
    text, unknown = linked(markdown, page.file.src_uri)
    for name in unknown:
        log.warning("%s: there is no page %s", page.file.src_uri, name)
    return text

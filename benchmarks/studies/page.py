"""docs/results.md: between two markers stands one section per table, each between marks of its own.

A run of some tables replaces their sections only; all the rest of the page stays.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final

from coda.errors import InvalidInput

BEGIN: Final = "<!-- make results writes from here -->"
END: Final = "<!-- make results writes to here -->"
_SECTION: Final = re.compile(r"<!-- table (\S+) -->\n(.*?)\n<!-- end of (\S+) -->", re.DOTALL)


def check_page(page: str) -> None:
    """Raise InvalidInput when the page has not both markers, in order, each once."""
    before, _, rest = page.partition(BEGIN)
    if page.count(BEGIN) != 1 or page.count(END) != 1 or END in before or END not in rest:
        raise InvalidInput(f"the page needs the lines {BEGIN!r} and {END!r}, once each and in this order")


def with_sections(page: str, text_by_name: Mapping[str, str], order: Sequence[str]) -> str:
    """Return the page with these sections new, and the others as they were, in `order`. Raises InvalidInput."""
    check_page(page)
    before, _, rest = page.partition(BEGIN)
    inside, _, after = rest.partition(END)
    sections = {name: text for name, text, end in _SECTION.findall(inside) if name == end} | dict(text_by_name)
    named = [name for name in order if name in sections]
    blocks = [f"<!-- table {name} -->\n{sections[name]}\n<!-- end of {name} -->" for name in named]
    return "\n\n".join([f"{before}{BEGIN}", *blocks, f"{END}{after}"])

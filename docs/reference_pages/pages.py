"""Which pages there are, and what begins each of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final

from docs.reference_pages.commands import commands_page
from docs.reference_pages.events import events_page
from docs.reference_pages.fields import fields_page
from docs.reference_pages.settings import settings_page

ROOT: Final = Path(__file__).resolve().parents[2]
FOLDER: Final = ROOT / "docs" / "reference"
MADE: Final = "<!-- made from the code by `make reference`; edit the code -->\n"

PAGES: Final[Mapping[str, Callable[[], str]]] = MappingProxyType(
    {
        "objects.md": lambda: fields_page(ROOT / "crds"),
        "settings.md": settings_page,
        "commands.md": commands_page,
        "events.md": events_page,
        "chart.md": lambda: _chart_page(ROOT / "deploy" / "helm" / "coda" / "values.yaml"),
    }
)


def pages() -> dict[str, str]:
    """Return every page by its file's name."""
    return {name: MADE + make() for name, make in PAGES.items()}


def _chart_page(values: Path) -> str:
    """The chart's values as they are: each has its explanation above it."""
    return f"# Values of the chart\n\n```yaml\n{values.read_text(encoding='utf-8').rstrip()}\n```\n"

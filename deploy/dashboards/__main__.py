"""Writes every dashboard into the chart."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from deploy.dashboards import cluster, coda_itself, job, node, queues
from deploy.dashboards.grafana import json_of

BOARDS: Final = tuple(module.BOARD for module in (cluster, queues, job, node, coda_itself))
FOLDER: Final = Path(__file__).resolve().parents[1] / "helm" / "coda" / "monitoring" / "dashboards"


def main() -> None:
    """Write them, and remove what no board makes any more."""
    FOLDER.mkdir(exist_ok=True)
    for path in FOLDER.glob("*.json"):
        path.unlink()
    for board in BOARDS:
        (FOLDER / f"{board.uid}.json").write_text(json_of(board), encoding="utf-8")


if __name__ == "__main__":
    main()

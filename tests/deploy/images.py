"""What deploy/Dockerfile makes of each part, read without building it."""

from __future__ import annotations

import json
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DOCKERFILE = ROOT / "deploy" / "Dockerfile"
FOLDERS = {"operator": "operator", "extender": "scheduler_extender", "agent": "node_agent"}


def instructions(stage: str) -> list[str]:
    """The instructions of a stage, after those of the stages that it starts from."""
    text = re.sub(r"\\\n", "", re.sub(r"(?m)^#.*\n", "", DOCKERFILE.read_text(encoding="utf-8")))
    base_by_stage: dict[str, str] = {}
    lines_by_stage: dict[str, list[str]] = {}
    name = ""
    for line in filter(None, text.splitlines()):
        if line.startswith("FROM "):
            base, _, name = line.removeprefix("FROM ").partition(" AS ")
            base_by_stage[name], lines_by_stage[name] = base, []
        elif base_by_stage:
            lines_by_stage[name].append(line)
    assert base_by_stage[""] == "${PART}", "the last stage is the part's"
    found: list[str] = []
    while stage in lines_by_stage:
        found, stage = [*lines_by_stage[stage], *found], base_by_stage[stage]
    return [f"FROM {stage}", *found]


def module_of(part: str) -> str:
    """The module that the image of a part starts."""
    (entry,) = (line for line in instructions(FOLDERS[part]) if line.startswith("ENTRYPOINT "))
    python, flag, module = json.loads(entry.removeprefix("ENTRYPOINT "))
    assert (python, flag) == ("python", "-m")
    return str(module)

"""The policy's configuration: one frozen value, passed down. What must not live here: reading files or environment.

Each field states unit, range and why this default; a value outside its range is refused when the object is built.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from coda.errors import InvalidInput


class Level(NamedTuple):
    """A topology level: the word users write in `locality`, and the node label whose values are its domains."""

    name: str
    label: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyConfig:
    """Everything about the policy that an installation may change. Raises InvalidInput for values out of range."""

    levels: tuple[Level, ...] = (
        Level("rack", "topology.coda.scheduler/rack"),
        Level("node", "kubernetes.io/hostname"),
    )
    """Topology levels, widest first; names unique. Empty: no locality beyond fewest nodes. Default: a rack is the
    usual network domain (Philly, section 2.1), and every kubelet sets the host name label."""

    bind_deadline_s: float = 60.0
    """Seconds from commit until all ranks must be bound, > 0. Default: a 512-pod gang binds in under 10 s, so a
    minute is only missed when something took the capacity; nothing is held half for longer."""

    refusal_holders: int = 5
    """Jobs named in one refusal, >= 0. Default: as many as a person reads; the largest come first."""

    unknown_category_cores: int = 4
    """Cores per GPU first tried for a job without category, 1..1024. Our choice (CODA gives none): between CV's 3
    and the 5 of NLP and speech."""

    def __post_init__(self) -> None:
        names = [level.name for level in self.levels]
        if len(set(names)) != len(names):
            raise InvalidInput(f"topology levels must have different names, got {', '.join(names)}")
        if not all(level.name and level.label for level in self.levels):
            raise InvalidInput("a topology level needs a name and a node label")
        if not self.bind_deadline_s > 0:
            raise InvalidInput(f"bind_deadline_s must be above 0, got {self.bind_deadline_s}")
        if self.refusal_holders < 0:
            raise InvalidInput(f"refusal_holders must not be negative, got {self.refusal_holders}")
        if not 1 <= self.unknown_category_cores <= 1024:
            raise InvalidInput(f"unknown_category_cores must be 1 to 1024, got {self.unknown_category_cores}")

    def level_index(self, name: str) -> int | None:
        """Where `name` stands in `levels`; None for a level this installation does not have."""
        return next((index for index, level in enumerate(self.levels) if level.name == name), None)

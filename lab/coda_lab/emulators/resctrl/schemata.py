"""The kernel's text of limits: how `schemata` is written and shown, with the refusals and their words.

A transcription of the rules of `fs/resctrl/ctrlmondata.c` (parse_line, bw_validate, show_doms).
"""

from __future__ import annotations

import errno
import re
from collections.abc import Mapping
from dataclasses import dataclass

from coda_lab.emulators.resctrl.profiles import Limiting, Profile

Values = dict[str, dict[int, int]]  # resource -> domain -> value
_DECIMAL = re.compile(r"\+?[0-9]+\Z")


class Refused(OSError):
    """A command that the kernel refuses; `status` is the text of last_cmd_status afterwards ("" leaves it ok)."""

    def __init__(self, number: int, status: str = "") -> None:
        super().__init__(number, status)
        self.status = status


@dataclass(frozen=True, slots=True, kw_only=True)
class Resource:
    """One line of schemata."""

    name: str
    default: int
    limiting: Limiting | None  # None: a cache mask

    def parsed(self, text: str) -> int:
        """The value the kernel makes of `text`. Raises Refused."""
        return self._mask(text) if self.limiting is None else self._bandwidth(text, self.limiting)

    def shown(self, value: int, *, padded: bool) -> str:
        """The value as `schemata` has it; `padded`: as kernels that align the values."""
        if self.limiting is None:
            return f"{value:x}"
        return f"{value:>{len(str(self.limiting.most))}}" if padded else str(value)

    def _bandwidth(self, text: str, limiting: Limiting) -> int:
        if not _DECIMAL.match(text) or int(text) > 0xFFFFFFFF:
            raise Refused(errno.EINVAL, f"Invalid MB value {text}")
        value = int(text)
        if limiting.in_mib:
            return value
        if not limiting.least <= value <= limiting.most:
            words = f"MB value {value} out of range [{limiting.least},{limiting.most}]"
            raise Refused(errno.EINVAL, words)
        return -(-value // limiting.granularity) * limiting.granularity

    def _mask(self, text: str) -> int:
        try:
            value = int(text, 16)
        except ValueError:
            raise Refused(errno.EINVAL, f"Non-hex character in the mask {text}") from None
        if not 0 < value <= self.default:
            raise Refused(errno.EINVAL, "Mask out of range")
        return value


def resources_of(profile: Profile) -> tuple[Resource, ...]:
    """The lines of a profile, in the kernel's order."""
    lines: list[Resource] = []
    if profile.slow_memory and profile.limiting is not None:
        lines.append(Resource(name="SMBA", default=profile.limiting.most, limiting=profile.limiting))
    if profile.limiting is not None:
        lines.append(Resource(name="MB", default=profile.limiting.most, limiting=profile.limiting))
    if profile.cache is not None:
        lines.append(Resource(name="L3", default=profile.cache.mask, limiting=None))
    return tuple(lines)


def show(resources: tuple[Resource, ...], values: Mapping[str, Mapping[int, int]], *, padded: bool) -> str:
    """The whole file: names aligned to the right."""
    width = max(len("MB"), *(len(resource.name) for resource in resources)) + 4 if resources else 0
    lines: list[str] = []
    for resource in resources:
        shown = (f"{domain}={resource.shown(value, padded=padded)}" for domain, value in values[resource.name].items())
        lines.append(f"{resource.name:>{width}}:{';'.join(shown)}\n")
    return "".join(lines)


def write(resources: tuple[Resource, ...], values: Values, command: str) -> None:
    """Carry out one write(2) on `values`: all of it or, with mba_MBps, the part before the refusal. Raises Refused.

    The caller has checked that `command` ends in a newline.
    """
    by_name = {resource.name: resource for resource in resources}
    staged: Values = {}
    for line in command[:-1].split("\n"):
        name, colon, rest = line.partition(":")
        if not colon:
            raise Refused(errno.EINVAL, "Missing ':'")
        name = name.strip()
        if not rest:
            raise Refused(errno.EINVAL, f"Missing '{name}' value")
        if name not in by_name:
            raise Refused(errno.EINVAL, f"Unknown or unsupported resource name '{name}'")
        _line(by_name[name], values[name], staged.setdefault(name, {}), rest)
    for name, changes in staged.items():
        values[name].update(changes)


def _line(resource: Resource, now: dict[int, int], staged: dict[int, int], rest: str) -> None:
    at_once = resource.limiting is not None and resource.limiting.in_mib
    for token in rest.removesuffix(";").split(";"):
        number, equals, text = token.partition("=")
        if not equals or not _DECIMAL.match(number):
            raise Refused(errno.EINVAL, "Missing '=' or non-numeric domain")
        domain = int(number)
        if domain not in now:
            raise Refused(errno.EINVAL)
        if domain in staged:
            raise Refused(errno.EINVAL, f"Duplicate domain {domain}")
        value = resource.parsed(text.strip())
        (now if at_once else staged)[domain] = value

"""The words of refusals: amounts and lists as people read them.

Equal facts give equal sentences: nothing here depends on the time or on counters that change with unrelated events.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import ceil
from typing import Final

from coda.model.resources import CPU, GPUS, MEMORY, PODS, Resources

_TOO_FEW: Final[Mapping[str, str]] = {
    GPUS: "too few GPUs are free",
    CPU: "too few cores are free",
    MEMORY: "too little memory is free",
    PODS: "too few pod slots are free",
}
_SCATTERED: Final[Mapping[str, str]] = {
    GPUS: "enough GPUs are free in all, but too scattered",
    CPU: "enough cores are free in all, but not on the nodes that have the rest",
    MEMORY: "enough memory is free in all, but not on the nodes that have the rest",
    PODS: "enough pod slots are free in all, but not on the nodes that have the rest",
}
_WORDS: Final[Mapping[str, str]] = {GPUS: "GPU", CPU: "core", PODS: "pod slot"}
_UNITS: Final = ((60, "EiB"), (50, "PiB"), (40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB"))
_INT64: Final = 2**63 - 1
_MOST_CLAIMS: Final = 3
_MOST: Final = 10**30  # a number with more digits is not written out
_CONTROLS: Final = {code: None for code in (*range(32), *range(127, 160)) if chr(code) not in "\t\n"}


def without_controls(text: str) -> str:
    """Return text that others wrote without the characters that terminals obey; tabs and ends of lines stay."""
    return text if text.isprintable() else text.translate(_CONTROLS)


def shortage_text(name: str, *, scattered: bool) -> str:
    """Say what is wrong with one resource: too little of it, or enough in the wrong places."""
    if scattered:
        return _SCATTERED.get(name, f"enough {name} is free in all, but not on the nodes that have the rest")
    return _TOO_FEW.get(name, f"too little {name} is free")


def free_text(name: str, amount: int) -> str:
    """What is free of one resource: "4 free GPUs", "no free core", "10 GiB of free memory"."""
    if name == MEMORY:
        return f"{bytes_text(amount)} of free memory" if amount else "no free memory"
    word = _WORDS.get(name, name)
    if not amount:
        return f"no free {word}"
    if name == CPU:
        return f"{_decimal(amount / 1000)} free core{'' if amount == 1000 else 's'}"
    return counted(amount, f"free {word}") if name in _WORDS else f"{amount} free {word}"


def plural(name: str) -> str:
    """A resource as a word: "GPUs", "memory"; further resources by their names."""
    return f"{_WORDS[name]}s" if name in _WORDS else "memory" if name == MEMORY else name


def amount_text(name: str, amount: int) -> str:
    """Write out GPUs or millicores: "8 GPUs", "no GPU", "1.5 cores"."""
    word = _WORDS[name]
    if not amount:
        return f"no {word}"
    return f"{_decimal(amount / 1000)} core{'' if amount == 1000 else 's'}" if name == CPU else counted(amount, word)


def amounts_text(resources: Resources) -> str:
    """Write out amounts without zeros and pod slots: "8 GPUs, 12 cores and 64 GiB of memory"."""
    parts = [counted(resources.gpus, "GPU")] if resources.gpus else []
    if resources.cpu_m:
        parts.append(f"{_decimal(resources.cpu_m / 1000)} core{'' if resources.cpu_m == 1000 else 's'}")
    if resources.memory_bytes:
        parts.append(f"{bytes_text(resources.memory_bytes)} of memory")
    parts += [f"{amount} {name}" for name, amount in sorted(resources.other.items()) if amount]
    return listed(parts) or "nothing but a pod slot"


def counted(count: int, word: str) -> str:
    """Write `1 rank`, `2 ranks`."""
    return f"{count} {word}" if count == 1 else f"{count} {word}s"


def listed(parts: Iterable[str]) -> str:
    """Write `a, b and c`."""
    *head, last = [*parts] or [""]
    return f"{', '.join(head)} and {last}" if head else last


def claims_text(claims: Sequence[str]) -> str:
    """Name PersistentVolumeClaims: of many the first ones, as a template may mount more than a sentence bears."""
    named = [*claims[:_MOST_CLAIMS]]
    if len(claims) > len(named):
        named.append(f"{len(claims) - len(named)} more")
    return f"PersistentVolumeClaim{'' if len(claims) == 1 else 's'} {listed(named)}"


def bytes_text(count: int) -> str:
    """Write bytes in the largest binary unit that keeps the number at 1 or more, with two decimals."""
    count = max(-_MOST, min(_MOST, count))
    for power, unit in _UNITS:
        if abs(count) >= 1 << power:
            return f"{_decimal(count / (1 << power))} {unit}"
    return counted(count, "byte")


def quota_text(key: str, milli: int) -> str:
    """Write an amount under a ResourceQuota key: bytes for memory and storage, else a plain number."""
    if "memory" in key or "storage" in key or "hugepages" in key:
        return bytes_text(milli // 1000)
    return _decimal(max(-_MOST, min(_MOST, milli)) / 1000)


def numbers_of(**numbers: int) -> dict[str, int]:
    """Return the numbers of a refusal, limited to what an int64 field of the API can carry."""
    return {name: max(-_INT64, min(_INT64, number)) for name, number in numbers.items()}


def _decimal(number: float) -> str:
    return f"{number:.2f}".rstrip("0").rstrip(".")


def moment_text(moment_s: float) -> str:
    """Write out a moment, in seconds since 1970: "2026-11-23 04:10 UTC". Source: Hinnant, days from civil."""
    days, rest_s = divmod(int(moment_s), 86_400)
    era, day_of_era = divmod(days + 719_468, 146_097)
    year_of_era = (day_of_era - day_of_era // 1460 + day_of_era // 36_524 - day_of_era // 146_096) // 365
    day_of_year = day_of_era - (365 * year_of_era + year_of_era // 4 - year_of_era // 100)
    month = (5 * day_of_year + 2) // 153
    day = day_of_year - (153 * month + 2) // 5 + 1
    month = month + 3 if month < 10 else month - 9
    year = year_of_era + era * 400 + (month <= 2)
    return f"{year:04}-{month:02}-{day:02} {rest_s // 3600:02}:{rest_s % 3600 // 60:02} UTC"


def clock_text(moment_s: float) -> str:
    """Return the time of day of this second since 1970, rounded up: `22:31:05 UTC`."""
    minutes, seconds = divmod(ceil(moment_s), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours % 24:02}:{minutes:02}:{seconds:02} UTC"

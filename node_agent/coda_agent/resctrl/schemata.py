"""The text of limits: what `schemata` says, and the commands that set one domain, or a whole line."""

from __future__ import annotations

from collections.abc import Mapping

NAME = "MB"


def bandwidth_limits(text: str) -> Mapping[int, int]:
    """Return the limits by domain, of the line `MB`; empty without it. A domain whose value is no number is left out.

    Names and values may be padded with blanks, as kernels do."""
    for line in text.splitlines():
        name, colon, rest = line.partition(":")
        if colon and name.strip() == NAME:
            pairs = (token.partition("=") for token in rest.split(";"))
            return {int(domain): int(value) for domain, _, value in pairs if _is_number(domain) and _is_number(value)}
    return {}


def limit_lines(text: str) -> tuple[str, ...]:
    """Return every line of `text` as the command that sets it: without the blanks that kernels pad with."""
    parts = (line.partition(":") for line in text.splitlines())
    return tuple(f"{name.strip()}:{''.join(rest.split())}\n" for name, colon, rest in parts if colon and rest.strip())


def limit_command(domain: int, value: int) -> str:
    """Return the write that limits one domain; the newline at its end is required."""
    return f"{NAME}:{domain}={value}\n"


def _is_number(text: str) -> bool:
    digits = text.strip()
    return digits.isascii() and digits.isdecimal() and len(digits) <= 10  # the kernel's are 32 bits

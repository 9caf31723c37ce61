"""The text of bandwidth limits: what `schemata` says, and the command that sets one domain.

Only the line `MB` counts; every other line is skipped."""

from __future__ import annotations

from collections.abc import Mapping

NAME = "MB"


def bandwidth_limits(text: str) -> Mapping[int, int]:
    """Return the limits by domain; empty without such a line. A domain whose value is no number is left out.

    Names and values may be padded with blanks, as kernels do."""
    for line in text.splitlines():
        name, colon, rest = line.partition(":")
        if colon and name.strip() == NAME:
            pairs = (token.partition("=") for token in rest.split(";"))
            return {int(domain): int(value) for domain, _, value in pairs if _is_number(domain) and _is_number(value)}
    return {}


def limit_command(domain: int, value: int) -> str:
    """Return the write that limits one domain; the newline at its end is required."""
    return f"{NAME}:{domain}={value}\n"


def _is_number(text: str) -> bool:
    digits = text.strip()
    return digits.isascii() and digits.isdecimal() and len(digits) <= 10  # the kernel's are 32 bits

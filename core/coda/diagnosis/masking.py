"""Secrets taken out of what is shown: evidence goes to a status that more people may read than the log."""

from __future__ import annotations

import re
from typing import Final

MASK: Final = "***"
_NAMES: Final = (
    r"(?:pass(?:word|wd|phrase)?|pwd|secret|token|api[_-]?key|apikey|access[_-]?key(?:[_-]?id)?|auth|credential"
    r"|private[_-]?key|sas|sig|signature|account[_-]?key|session[_-]?id|cookie)"
)
_RULES: Final = tuple(
    (re.compile(pattern, re.IGNORECASE), replacement)
    for pattern, replacement in (
        (r"([a-z][a-z0-9+.-]{1,20}://)[^\s/@:'\"]{0,200}:[^\s@'\"]{1,200}@", rf"\1{MASK}@"),
        (r"([a-z][a-z0-9+.-]{1,20}://)[^\s/@:'\"]{8,200}@", rf"\1{MASK}@"),
        (r"\b((?:bearer|basic)\s{1,3})[a-z0-9._~+/=-]{8,2000}", rf"\1{MASK}"),
        (r"(authorization['\"]?\s{0,3}[:=]\s{0,3}['\"]?(?!bearer|basic))[^\s'\",;]{4,2000}", rf"\1{MASK}"),
        (
            rf"([a-z0-9_.-]{{0,40}}{_NAMES}(?:['\"]?\s{{0,3}}[:=]\s{{0,3}}['\"]?|['\"]\s{{0,3}},\s{{0,3}}['\"]))"
            r"(?!\*\*\*|(?:none|null|true|false|not|is|must|should|required|expected|invalid)\b)[^\s'\",;&)}\]]{4,2000}",
            rf"\1{MASK}",
        ),
        (rf"(--[a-z0-9-]{{0,30}}{_NAMES}\s{{1,3}})(?!-)[^\s'\"]{{4,2000}}", rf"\1{MASK}"),
        (
            r"\b(?:hf_|glpat-|gh[pousr]_|github_pat_|sk-|sk_live_|xox[abprs]-|pypi-|npm_|dckr_pat_|nvapi-|r8_|AIza)"
            r"[a-z0-9_-]{12,400}",
            MASK,
        ),
        (r"\b(?:AKIA|ASIA|AGPA|AROA)[A-Z0-9]{12,40}\b", MASK),
        (r"\beyJ[a-z0-9_-]{8,2000}\.[a-z0-9_-]{4,2000}(?:\.[a-z0-9_-]{0,2000})?", MASK),
        (r"-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----.{0,4000}", MASK),
        (r"\b[0-9a-f]{40}\b(?=['\"]?\s{0,2}(?:is not a valid|api key|invalid))", MASK),
    )
)
_LONGEST: Final = 4000


def masked(text: str) -> str:
    """Return the text, at most 4000 characters of it, with what looks like a secret replaced by ***."""
    text = text[:_LONGEST]
    for pattern, replacement in _RULES:
        text = pattern.sub(replacement, text)
    return text

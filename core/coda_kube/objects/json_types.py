"""The type of an object as the API server writes it."""

from __future__ import annotations

from typing import Any

Json = dict[str, Any]

"""JSON text -> objects, for any text that an API server can send.

The API server stores objects that are nested thousands of levels deep, where a schema lets it; parsers here stop at
1024 levels, and every recursive function at about 1000. So what is nested too deeply is cut out, and the rest of the
object, and every other object of the same answer, is read as usual.
"""

from __future__ import annotations

import asyncio
import re
from typing import Any, Final

import orjson

DEPTH_LIMIT: Final = 200
"""Levels that are kept in a cut object. No object of Kubernetes needs 40, and orjson writes no more than 254."""
CUT: Final = "coda: nested too deeply"
"""Stands for what was cut out. A text where an object belongs is refused by the API server, if it is ever sent back."""
_QUICK_CUTS: Final = 3  # then everything is looked at: a cut costs a parse of the whole text

_TOKEN: Final = re.compile(rb'"(?:[^"\\]+|\\.)*"|[\[\]{}]')
_MARK: Final = orjson.dumps(CUT)


class CutJson(dict[str, Any]):
    """An object of which something was cut out because it is nested too deeply."""


async def read_json(text: bytes) -> Any:
    """Parse the text. What is nested too deeply is cut out, in a thread, and the objects it was in are `CutJson`.

    Raises ValueError for a text that is not JSON."""
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError as error:
        if not _is_too_deep(error):
            raise
    return await asyncio.to_thread(parse_deep, text)


def parse_deep(text: bytes) -> Any:
    """Parse a text that may be nested too deeply. Raises ValueError. O(text)."""
    for _ in range(_QUICK_CUTS):
        try:
            return _marked(orjson.loads(text))
        except orjson.JSONDecodeError as error:
            if not _is_too_deep(error):
                raise
            if not text.isascii() or text[error.pos - 1 : error.pos] not in (b"[", b"{"):
                break  # the position is not that of the byte after the bracket
            text = _without_value_at(text, error.pos - 1)
    return _marked(orjson.loads(_cut(text, DEPTH_LIMIT)))


def shallow(value: Any) -> tuple[Any, bool]:
    """Return the value without what is nested too deeply, and whether there was any. O(value)."""
    try:
        if _MARK not in orjson.dumps(value):
            return value, False
    except TypeError:  # more than 254 levels
        return _pruned(value, DEPTH_LIMIT), True
    return value, True


def _is_too_deep(error: orjson.JSONDecodeError) -> bool:
    return "depth limit" in error.msg or "recursion limit" in error.msg


def _without_value_at(text: bytes, start: int) -> bytes:
    """The text with a mark instead of the array or object that begins at `start`."""
    depth = 0
    for token in _TOKEN.finditer(text, start):
        first = text[token.start()]
        if first in b"[{":
            depth += 1
        elif first in b"]}":
            depth -= 1
            if not depth:
                return text[:start] + _MARK + text[token.end() :]
    raise ValueError("the text ends within an object")


def _cut(text: bytes, limit: int) -> bytes:
    """The text with marks instead of what is nested deeper than `limit`."""
    parts: list[bytes] = []
    depth = kept_from = cut_from = 0
    for token in _TOKEN.finditer(text):
        first = text[token.start()]
        if first in b"[{":
            depth += 1
            if depth == limit + 1:
                cut_from = token.start()
        elif first in b"]}":
            if depth == limit + 1:
                parts += (text[kept_from:cut_from], _MARK)
                kept_from = token.end()
            depth -= 1
    return b"".join((*parts, text[kept_from:]))


def _marked(value: Any) -> Any:
    """The answer, in which every object that something was cut out of is shallow and a `CutJson`."""
    if isinstance(value, dict) and isinstance(value.get("items"), list):
        return value | {"items": [_marked_object(item) for item in value["items"]]}
    if isinstance(value, dict) and isinstance(value.get("object"), dict):  # an event of a watch
        return value | {"object": _marked_object(value["object"])}
    return _marked_object(value)


def _marked_object(value: Any) -> Any:
    kept, is_cut = shallow(value)
    return CutJson(kept) if is_cut and isinstance(kept, dict) else kept


def _pruned(value: Any, levels: int) -> Any:
    if not isinstance(value, dict | list):
        return value
    if not levels:
        return CUT
    if isinstance(value, dict):
        return {name: _pruned(item, levels - 1) for name, item in value.items()}
    return [_pruned(item, levels - 1) for item in value]

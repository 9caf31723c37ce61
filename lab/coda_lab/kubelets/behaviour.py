"""The simulation annotations of a pod. Knows metadata only, no time and no API server."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from coda.errors import InvalidInput
from coda_kube.objects import names
from coda_kube.objects.quantities import whole_from_quantity

PREFIX: Final = f"sim.{names.GROUP}/"


@dataclass(frozen=True, slots=True, kw_only=True)
class Behaviour:
    """How the simulated containers of one pod behave."""

    run_s: float | None = None  # from start to exit; None: until deleted
    runs_from_placement: bool = False  # `run_s` counts from its placement, or its gang's, not from its start
    exit_code: int = 0
    needs_bytes: int = 0  # of memory; with a lower limit the main container is killed for memory at its end
    log: str | None = None  # None: a few synthesised lines
    start_delay_s: float = 0.005  # from admission to started containers (or to the failing image pull)
    stop_s: float = 0.2  # from deletion to stopped containers, unless the grace period is shorter
    exit_on_stop_s: float | None = None  # from the announcement of a stop to its own exit; None: it does not listen
    fails_image_pull: bool = False
    refusal: str | None = None  # the kubelet refuses the pod with this reason
    never_starts: bool = False


USUAL: Final = Behaviour()


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 <= seconds < math.inf:
        raise InvalidInput("a number of seconds from 0 on")
    return seconds


def _exit_code(text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) > 255:
        raise InvalidInput("a whole number from 0 to 255")
    return int(text)


def _true(text: str) -> bool:
    if text not in ("true", "false"):
        raise InvalidInput('"true" or "false"')
    return text == "true"


def _fail(text: str) -> bool:
    if text != "fail":
        raise InvalidInput('"fail"')
    return True


def _placement(text: str) -> bool:
    if text != "placement":
        raise InvalidInput('"placement"')
    return True


def _reason(text: str) -> str:
    if not text.strip():
        raise InvalidInput("the reason to refuse with")
    return text


_READERS: Final[Mapping[str, tuple[str, Callable[[str], Any]]]] = {
    "run-seconds": ("run_s", _seconds),
    "run-from": ("runs_from_placement", _placement),
    "exit-code": ("exit_code", _exit_code),
    "needs-memory": ("needs_bytes", whole_from_quantity),
    "log": ("log", str),
    "start-delay-seconds": ("start_delay_s", _seconds),
    "stop-seconds": ("stop_s", _seconds),
    "exit-on-stop-seconds": ("exit_on_stop_s", _seconds),
    "image-pull": ("fails_image_pull", _fail),
    "refuse": ("refusal", _reason),
    "never-start": ("never_starts", _true),
}


def behaviour_from_metadata(metadata: Mapping[str, Any]) -> Behaviour:
    """Return the behaviour the annotations ask for. Raises InvalidInput with the annotation's name.

    `<name>.rank-<r>` counts for the pod labelled with that rank and wins over `<name>.attempt-<a>`, which wins over
    `<name>`. Unknown names under the prefix are refused too: a misspelt annotation must not pass for a healthy pod.
    """
    asked = {key: text for key, text in (metadata.get("annotations") or {}).items() if key.startswith(PREFIX)}
    if not asked:
        return USUAL
    labels = metadata.get("labels") or {}
    suffixes = ("", f".attempt-{labels.get(names.LABEL_ATTEMPT)}", f".rank-{labels.get(names.LABEL_RANK)}")
    fields: dict[str, Any] = {}
    for key in sorted(asked):
        if key.removeprefix(PREFIX).partition(".")[0] not in _READERS:
            raise InvalidInput(f"annotation {key} is unknown: the names are {', '.join(sorted(_READERS))}")
    for name, (field, reader) in _READERS.items():
        for key in (PREFIX + name + suffix for suffix in suffixes):
            if key in asked:
                fields[field] = _read(key, asked[key], reader)
    return Behaviour(**fields)


def _read(key: str, text: str, reader: Callable[[str], Any]) -> Any:
    try:
        return reader(text)
    except InvalidInput as error:
        raise InvalidInput(f"annotation {key} is {text!r}: give {error}") from error

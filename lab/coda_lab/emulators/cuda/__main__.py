"""`python -m coda_lab.emulators.cuda [VERSION ...]` (`make torch`): fetch torch for the rig, by default all.

`newest` is a version too: the one that short tests use."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from coda.errors import CodaError
from coda_lab.emulators.cuda.torch_rig import TORCH_VERSIONS, fetch_torch
from coda_lab.host.paths import Settings


def main(words: Sequence[str] | None = None) -> int:
    """Fetch the given versions, or all; print where each is. 1 with one sentence on failure."""
    versions = list(sys.argv[1:] if words is None else words) or list(TORCH_VERSIONS)
    try:
        for version in versions:
            named = next(iter(TORCH_VERSIONS)) if version == "newest" else version
            print(fetch_torch(Settings.from_environ(), named).site)  # noqa: T201
    except CodaError as error:
        print(error, file=sys.stderr)  # noqa: T201
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

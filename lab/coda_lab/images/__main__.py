"""`python -m coda_lab.images PART OUT` (`make image`): writes a part's image, and what it is made of."""

from __future__ import annotations

import sys
from pathlib import Path

from coda.errors import CodaError
from coda_lab.host.paths import Settings
from coda_lab.images.image import PARTS, checkout_tag, write_image


def main(words: list[str]) -> int:
    """Write it and print its name; 1 with one sentence on failure."""
    if len(words) != 2 or words[0] not in PARTS:
        print(f"usage: python -m coda_lab.images {'|'.join(PARTS)} OUT", file=sys.stderr)  # noqa: T201
        return 2
    part, out = words
    try:
        name = write_image(PARTS[part], Path(out), checkout_tag(), Settings.from_environ(), _tell)
        print(name)  # noqa: T201
    except CodaError as error:
        print(error, file=sys.stderr)  # noqa: T201
        return 1
    return 0


def _tell(sentence: str) -> None:
    print(sentence, file=sys.stderr)  # noqa: T201


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))

"""`python -m coda_lab.images OUT` (`make agent-image`): writes the agent's image as an OCI archive."""

from __future__ import annotations

import sys
from importlib import metadata
from pathlib import Path

from coda.errors import CodaError
from coda_lab.host.paths import Settings
from coda_lab.images.agent import write_agent_image


def main(words: list[str]) -> int:
    """Write it and print its name; 1 with one sentence on failure."""
    try:
        print(write_agent_image(Path(words[0]), metadata.version("coda"), Settings.from_environ(), _tell))  # noqa: T201
    except CodaError as error:
        print(error, file=sys.stderr)  # noqa: T201
        return 1
    return 0


def _tell(sentence: str) -> None:
    print(sentence, file=sys.stderr)  # noqa: T201


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))

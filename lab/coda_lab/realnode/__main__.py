"""`python -m coda_lab.realnode` (`make node`): makes everything a real node needs and prints where it is."""

from __future__ import annotations

import sys

from coda.errors import CodaError
from coda_lab.host.paths import Settings
from coda_lab.realnode.artifacts import ensure_node, missing_programs
from coda_lab.realnode.kernel import install_packages


def main() -> int:
    """Make the artifacts and print where they are; 1 with one sentence when that fails, 130 when interrupted."""
    settings = Settings.from_environ()
    try:
        if missing := missing_programs(settings):
            install_packages(missing, settings, _tell)
        pieces = ensure_node(settings, _tell)
    except CodaError as error:
        print(error, file=sys.stderr)  # noqa: T201 - this is a command
        return 1
    except KeyboardInterrupt:
        print("Interrupted; run it again to go on where it stopped.", file=sys.stderr)  # noqa: T201
        return 130
    machine = pieces.machine
    found = {"kernel": machine.kernel.image, "qemu": machine.qemu, "busybox": machine.busybox, "guest": machine.guest}
    found |= {"containerd": pieces.runtime / "containerd", "runc": pieces.runc, "kubelet": pieces.kubelet}
    found |= {f"image {archive.stem}": archive for archive in pieces.image_archives}
    for name, path in found.items():
        print(f"{name:14} {path}")  # noqa: T201
    return 0


def _tell(sentence: str) -> None:
    print(sentence, file=sys.stderr)  # noqa: T201


if __name__ == "__main__":
    raise SystemExit(main())

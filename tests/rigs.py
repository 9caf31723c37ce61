"""What tests of the agent and of its emulators need from the machine; CODA_REQUIRE_RIGS=1: lacking it is a failure."""

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from coda_lab.emulators.resctrl.machine import Machine
from coda_lab.emulators.resctrl.profiles import PROFILES, Profile
from tests.emulated import Emulated


def need(present: bool, what: str) -> None:
    if present:
        return
    if os.environ.get("CODA_REQUIRE_RIGS") == "1":
        pytest.fail(f"this machine has no {what}, and CODA_REQUIRE_RIGS=1 asks for it")
    pytest.skip(f"needs {what}")


def _has_fuse() -> bool:
    try:
        import mfusepy  # noqa: F401  # raises OSError where libfuse is missing
    except (ImportError, OSError):
        return False
    return os.access("/dev/fuse", os.W_OK) and os.geteuid() == 0


@pytest.fixture(scope="session")
def needs_fuse() -> None:
    need(_has_fuse(), "FUSE (root, /dev/fuse, libfuse)")


@pytest.fixture(scope="session")
def needs_root() -> None:
    need(os.geteuid() == 0, "root")


@pytest.fixture(scope="session")
def needs_gcc() -> None:
    need(shutil.which("gcc") is not None, "gcc")


Emulate = Callable[[str | Profile], Emulated]


@pytest.fixture
def emulate(needs_fuse: None, tmp_path: Path) -> Iterator[Emulate]:
    """Mounts an emulated resctrl, by the name of its profile."""
    from coda_lab.emulators.resctrl.mounting import mounted  # needs libfuse

    with ExitStack() as stack:

        def start(profile: str | Profile) -> Emulated:
            machine = Machine(PROFILES[profile] if isinstance(profile, str) else profile)
            root = tmp_path / f"resctrl{len(list(tmp_path.iterdir()))}"
            root.mkdir()
            return Emulated(machine, stack.enter_context(mounted(machine, root)))

        yield start


@pytest.fixture
def intel(emulate: Emulate) -> Emulated:
    return emulate("intel")

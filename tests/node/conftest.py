"""What tests of the agent need from the machine; with CODA_REQUIRE_RIGS=1 lacking it is a failure."""

import os
import shutil

import pytest


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

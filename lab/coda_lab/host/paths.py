"""The user's cache and the files that Coda ships. This module is the only one that reads the environment.

Where a file that Coda ships is not there, InvalidInput says what to do."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from coda.errors import InvalidInput

NEEDS_A_CLONE = "this needs a clone of Coda's repository: run `make demo` in one, or the command as its .venv/bin/coda"
"""What is said where the package is installed alone, from a wheel: it has no sources of a control plane."""

_HERE = Path(__file__).resolve().parent


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The lab's settings from the environment.

    `cache`: CODA_CACHE_DIR, else XDG_CACHE_HOME/coda, else ~/.cache/coda.
    `ready_made`: KUBEBUILDER_ASSETS, the folder of etcd, kube-apiserver and kubectl for controller tests; else None.
    `environ`: the whole environment, for the programs that the lab starts.
    """

    cache: Path
    ready_made: Path | None
    environ: Mapping[str, str]

    @classmethod
    def from_environ(cls, environ: Mapping[str, str] | None = None) -> Settings:
        """The settings; `environ` is this process's environment by default."""
        values = dict(os.environ if environ is None else environ)
        if values.get("CODA_CACHE_DIR"):
            cache = Path(values["CODA_CACHE_DIR"])
        elif values.get("XDG_CACHE_HOME"):
            cache = Path(values["XDG_CACHE_HOME"]) / "coda"
        else:
            cache = Path.home() / ".cache" / "coda"
        ready_made = values.get("KUBEBUILDER_ASSETS")
        return cls(cache=cache.absolute(), ready_made=Path(ready_made) if ready_made else None, environ=values)


def kube_module() -> Path:
    """The Go module of the control plane."""
    return _shipped("kube", Path("lab/kube"))


def helm_module() -> Path:
    """The Go module that pins Helm."""
    return _shipped("helm", Path("lab/helm"))


def neighbours_module(name: str) -> Path:
    """The Go module that pins a program of other people's clusters. Only a checkout has it: tests alone need it."""
    return sources() / "lab" / "neighbours" / name


def node_sources() -> Path:
    """The Go modules, the C program and the script that the real node is built from."""
    return _shipped("node", Path("lab/node"))


def chart() -> Path:
    """The Helm chart."""
    return _shipped("chart", Path("deploy/helm/coda"))


def crds() -> Path:
    """The folder of CustomResourceDefinitions."""
    return _shipped("crds", Path("crds"))


def manifests() -> Path:
    """The folder with the namespace, accounts and roles that every installation needs."""
    return _shipped("manifests", Path("deploy/manifests"))


def sources() -> Path:
    """The root of the repository; only a checkout has one."""
    return _HERE.parents[2]


def _shipped(name: str, in_repository: Path) -> Path:
    packaged, in_checkout = _HERE.parent / "assets" / name, _HERE.parents[2] / in_repository
    if not packaged.is_dir() and not in_checkout.is_dir():
        raise InvalidInput(NEEDS_A_CLONE)
    return packaged if packaged.is_dir() else in_checkout

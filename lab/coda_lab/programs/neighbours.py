"""What runs beside Coda in other people's clusters, for the long tests, from the Go modules that pin its versions:
cert-manager's controllers, built once, and the definitions of cert-manager and of the Prometheus operator."""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from coda_lab.host.errors import LabFailure
from coda_lab.host.paths import Settings, kube_module, neighbours_module
from coda_lab.programs.cache import built, key_of
from coda_lab.programs.go_build import Recipe, pinned_version
from coda_lab.programs.go_toolchain import find_go, install_go
from coda_lab.programs.progress import BuildDisplay


@dataclass(frozen=True, slots=True, kw_only=True)
class Neighbour:
    """One of them: the folder of our Go module, the module that it pins, and where that one has its definitions."""

    module: Path
    dependency: str
    folder: str

    @property
    def version(self) -> str:
        """The version that is pinned, such as v1.21.2."""
        return pinned_version(self.module, self.dependency)

    def definitions(self, settings: Settings) -> Path:
        """The folder of its CustomResourceDefinitions, fetched first if need be. Raises LabFailure."""
        go = find_go(self.module, settings) or install_go(kube_module(), settings)
        said = subprocess.run(
            [str(go), "mod", "download", "-json", f"{self.dependency}@{self.version}"],
            cwd=self.module,
            env=dict(settings.environ),
            capture_output=True,
            text=True,
            check=False,
        )
        if said.returncode != 0:
            raise LabFailure(f"{self.dependency} cannot be fetched: {said.stderr.strip()[-300:]}")
        return Path(json.loads(said.stdout)["Dir"]) / self.folder


CERT_MANAGER: Final = Neighbour(
    module=neighbours_module("certmanager"), dependency="github.com/cert-manager/cert-manager", folder="deploy/crds"
)
PROMETHEUS_OPERATOR: Final = Neighbour(
    module=neighbours_module("prometheusoperator"),
    dependency="github.com/prometheus-operator/prometheus-operator",
    folder="example/prometheus-operator-crd",
)


def cert_manager(settings: Settings) -> Path:
    """cert-manager's controllers of Certificates, built first if need be. Raises LabFailure with one sentence."""
    recipe = Recipe(
        program="cert-manager",
        module=CERT_MANAGER.module,
        package=".",
        linker_flags="-s -w",
        title="cert-manager",
        announcement="Building cert-manager: once per machine and version, about 5 minutes on 2 cores.",
        packages_cold=850,
        seconds_cold=300.0,
    )
    sources = (recipe.module / name for name in ("go.mod", "go.sum", "main.go"))
    with BuildDisplay(recipe) as display:
        return built(recipe, key_of(CERT_MANAGER.version, sources), settings, display.show) / recipe.program

"""Helm, which renders and installs the chart. It is built once from the module that pins its version.

`python -m coda_lab.programs.helm` (`make helm`) builds it and prints where it is.
"""

from __future__ import annotations

import sys
from pathlib import Path

from coda.errors import CodaError
from coda_lab.host.paths import Settings, helm_module
from coda_lab.programs.cache import built, key_of
from coda_lab.programs.go_build import Recipe, pinned_version
from coda_lab.programs.go_toolchain import version_from_text
from coda_lab.programs.progress import BuildDisplay

_HELM = "helm.sh/helm/v3"


def ensure_shown(settings: Settings) -> Path:
    """The program `helm`. It is built if it is missing; stderr shows the build. Raises LabFailure with one sentence."""
    recipe = _recipe()
    key = key_of(pinned_version(recipe.module, _HELM), (recipe.module / name for name in ("go.mod", "go.sum")))
    with BuildDisplay(recipe) as display:
        return built(recipe, key, settings, display.show) / recipe.program


def _recipe() -> Recipe:
    module = helm_module()
    _, minor, *_ = version_from_text(pinned_version(module, "k8s.io/client-go"))  # v0.37 talks to Kubernetes 1.37
    values = {f"{_HELM}/internal/version.version": pinned_version(module, _HELM)}
    for package in ("lint/rules", "chartutil"):
        values[f"{_HELM}/pkg/{package}.k8sVersionMajor"] = "1"
        values[f"{_HELM}/pkg/{package}.k8sVersionMinor"] = str(minor)
    return Recipe(
        program="helm",
        module=module,
        package=f"{_HELM}/cmd/helm",
        linker_flags=" ".join(["-s", "-w", *(f"-X {name}={value}" for name, value in values.items())]),
        title="Helm",
        announcement="Building Helm: once per machine and version, about 2 minutes on 2 cores.",
        packages_cold=960,  # measured with 3.22.0
        seconds_cold=120.0,
    )


def main() -> int:
    """Build it and print where it is; 1 with one sentence on failure, 130 when interrupted."""
    try:
        print(ensure_shown(Settings.from_environ()))  # noqa: T201 - this is a command
    except CodaError as error:
        print(error, file=sys.stderr)  # noqa: T201
        return 1
    except KeyboardInterrupt:
        print("Interrupted; run it again to go on where it stopped.", file=sys.stderr)  # noqa: T201
        return 130
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

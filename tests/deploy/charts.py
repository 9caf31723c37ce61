"""The chart as Helm renders it, read back for assertions."""

from __future__ import annotations

import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from coda_lab.host.paths import Settings, chart
from coda_lab.programs.helm import ensure_shown

Json = dict[str, Any]

NAMESPACE = "coda-system"
PARTS = ("operator", "extender", "scheduler")


@dataclass(frozen=True, slots=True, kw_only=True)
class Helm:
    """The program. `environ` keeps a person's own Helm files out of sight."""

    program: Path
    environ: dict[str, str]

    @classmethod
    def at(cls, home: Path) -> Helm:
        """The program, built first if it is missing, with its files in `home`."""
        folders = {f"HELM_{name}_HOME": str(home / name) for name in ("CACHE", "CONFIG", "DATA")}
        environ = {"HOME": str(home), "NO_PROXY": "127.0.0.1", **folders}
        return cls(program=ensure_shown(Settings.from_environ()), environ=environ)

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run it, whatever comes of it."""
        return subprocess.run([self.program, *words], env=self.environ, capture_output=True, text=True, check=False)

    def render(
        self, *values: str, namespace: str = NAMESPACE, kube: str = "v1.36.3", more: Iterable[str] = ()
    ) -> list[Json]:
        """The objects that an installation with these values (`key=value`) makes."""
        ended = self.template(*values, namespace=namespace, kube=kube, more=more)
        assert ended.returncode == 0, ended.stderr
        return [item for item in yaml.load_all(ended.stdout, yaml.CSafeLoader) if item]

    def refusal(self, *values: str, namespace: str = NAMESPACE) -> str:
        """What is said of values that are refused."""
        ended = self.template(*values, namespace=namespace)
        assert ended.returncode != 0, f"{values} were accepted"
        return ended.stderr

    def template(
        self, *values: str, namespace: str = NAMESPACE, kube: str = "v1.36.3", more: Iterable[str] = ()
    ) -> subprocess.CompletedProcess[str]:
        """`helm template`."""
        sets = [word for value in values for word in ("--set", value)]
        return self.run(
            "template", "coda", str(chart()), "--namespace", namespace, "--kube-version", kube, *sets, *more
        )


def find(items: Iterable[Json], kind: str, name: str) -> Json:
    """The one object of that kind and name."""
    (found,) = (item for item in items if (item["kind"], item["metadata"]["name"]) == (kind, name))
    return found


def pod_of(items: Iterable[Json], part: str) -> Json:
    """The pod template of a part's Deployment."""
    template: Json = find(items, "Deployment", f"coda-{part}")["spec"]["template"]
    return template


def container_of(items: Iterable[Json], part: str) -> Json:
    """The container of a part."""
    (container,) = pod_of(items, part)["spec"]["containers"]
    return dict(container)


def environ_of(items: Iterable[Json], part: str) -> dict[str, str]:
    """The environment of a part, as far as it is values."""
    return {entry["name"]: entry["value"] for entry in container_of(items, part)["env"] if "value" in entry}


def scheduler_configuration(items: Iterable[Json]) -> Json:
    """kube-scheduler's configuration."""
    text = find(items, "ConfigMap", "coda-scheduler")["data"]["scheduler.yaml"]
    configuration: Json = yaml.safe_load(text)
    return configuration

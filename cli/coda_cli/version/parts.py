"""The versions of all parts of a cluster, and which of them do not go together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from coda.wording import listed
from coda_kube.api.client import Client, NotFound, Rejected
from coda_kube.api.installed_version import installed_version
from coda_kube.objects.names import ANNOTATION_VERSION, OPERATOR_LEASE, PLANNER_LEASE, SYSTEM_NAMESPACE

LEADERS: Final = {"operator": OPERATOR_LEASE, "planner": PLANNER_LEASE}
CLIENT, AGENT, SCHEDULER, KUBERNETES = "coda", "agent", "kube-scheduler", "Kubernetes"
NOT_TOLD: Final = "unknown"
"""Of a leader that writes no version yet, and of an image without a tag."""


@dataclass(frozen=True, slots=True)
class Part:
    """One part. `version`: empty if it is not there, or if the user may not look: `note` says which."""

    name: str
    version: str
    note: str = ""


async def parts_of(client: Client) -> list[Part]:
    """Return this command's version, and those of the cluster's parts. Raises CodaError if it does not answer."""
    return [
        Part(CLIENT, installed_version(), "this command"),
        *[await _leader(client, name, lease) for name, lease in LEADERS.items()],
        await _image(client, AGENT, "daemonsets", "coda-agent"),
        await _image(client, SCHEDULER, "deployments", "coda-scheduler"),
        Part(KUBERNETES, str((await client.get("/version"))["gitVersion"]), "the API server"),
    ]


async def _leader(client: Client, name: str, lease: str) -> Part:
    path = f"/apis/coordination.k8s.io/v1/namespaces/{SYSTEM_NAMESPACE}/leases/{lease}"
    try:
        found = await client.get(path)
    except NotFound:
        return Part(name, "", "not installed")
    except Rejected:
        return Part(name, "", "you may not look")
    return Part(name, version_from_lease(found), "of the replica that leads")


def version_from_lease(lease: Any) -> str:
    """Return the version that the holder wrote; `unknown` if it wrote none."""
    return str((lease["metadata"].get("annotations") or {}).get(ANNOTATION_VERSION) or NOT_TOLD)


async def _image(client: Client, name: str, kinds: str, workload: str) -> Part:
    try:
        found = await client.get(f"/apis/apps/v1/namespaces/{SYSTEM_NAMESPACE}/{kinds}/{workload}")
    except NotFound:
        return Part(name, "", f"no {kinds.removesuffix('s')} {workload}")
    except Rejected:
        return Part(name, "", "you may not look")
    return Part(name, tag_of(str(found["spec"]["template"]["spec"]["containers"][0]["image"])), "its image's tag")


def tag_of(image: str) -> str:
    """Return the tag of an image's name; `unknown` if a digest alone names it, or nothing."""
    last = image.partition("@")[0].rpartition("/")[2]
    return last.partition(":")[2] or NOT_TOLD


def skews(parts: Sequence[Part]) -> Iterator[str]:
    """Yield a sentence for each thing that does not go together."""
    version_by_name = {part.name: part.version for part in parts}
    own = version_by_name[CLIENT]
    others = {name: version_by_name.get(name, "") for name in (*LEADERS, AGENT)}
    told = {name: version for name, version in others.items() if version not in ("", NOT_TOLD)}
    differing = [f"{name} is {version}" for name, version in told.items() if not _agree(version, own)]
    if differing:
        yield f"{listed(differing)}, and this command {own}: use the version that the cluster has"
    elif len({_number_and_build(version)[1] for version in told.values()} - {""}) > 1:
        builds = listed([f"{name} is {version}" for name, version in told.items()])
        yield f"{builds}: one build has not replaced the other everywhere"
    silent = [name for name in LEADERS if others[name] == NOT_TOLD]
    if silent:
        yield f"{listed(silent)} does not say its version, so it is older than this command: upgrade it"
    scheduler, api = (_minor(version_by_name.get(name, "")) for name in (SCHEDULER, KUBERNETES))
    if scheduler and api and not api[1] - 1 <= scheduler[1] <= api[1]:
        why = "upgrade Coda after the API servers" if scheduler < api else "it may not be newer than the API server"
        yield f"kube-scheduler is {_text(scheduler)}, the API server {_text(api)}: {why}"


def _agree(one: str, other: str) -> bool:
    """True unless the numbers differ, or the builds where both say theirs: a command from a wheel says none."""
    (number, build), (other_number, other_build) = _number_and_build(one), _number_and_build(other)
    return number == other_number and (not build or not other_build or build == other_build)


def _number_and_build(version: str) -> tuple[str, str]:
    """Return 0.1.0 and the commit of `0.1.0+COMMIT`, and of `0.1.0-COMMIT`, as an image's tag has it."""
    number, _, build = version.replace("-", "+", 1).partition("+")
    return number, build.replace("-", ".")


def _minor(version: str) -> tuple[int, int] | None:
    """Major and minor of `v1.36.3`; None for what is no such version."""
    words = version.removeprefix("v").split(".")
    return (int(words[0]), int(words[1])) if len(words) > 1 and words[0].isdigit() and words[1].isdigit() else None


def _text(version: tuple[int, int]) -> str:
    return f"{version[0]}.{version[1]}"

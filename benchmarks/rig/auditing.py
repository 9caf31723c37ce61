"""A cluster whose API server keeps an audit log, and who asked for what in it."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import orjson

from coda_kube.objects.names import SYSTEM_NAMESPACE
from coda_lab.host.paths import Settings
from coda_lab.local.cluster import LocalCluster
from coda_lab.programs.control_plane import Binaries
from coda_lab.spec import ClusterSpec

API_SERVER: Final = "kube-apiserver"
_POLICY: Final = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived", "ResponseStarted"],
    "rules": [{"level": "Metadata"}],
}


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Request:
    """One kind of request: who, the verb, and of which resource (with its subresource)."""

    user: str
    verb: str
    resource: str


class AuditedCluster(LocalCluster):
    """A local cluster that writes down every request once it is answered."""

    def __init__(self, spec: ClusterSpec, folder: Path, binaries: Binaries, settings: Settings) -> None:
        super().__init__(spec, folder, binaries, settings)
        policy, self.audit_log = folder / "audit-policy.json", folder / "audit.log"
        policy.write_text(json.dumps(_POLICY))
        server = self.part_by_name[API_SERVER]
        more = (
            f"--audit-policy-file={policy}",
            f"--audit-log-path={self.audit_log}",
            "--audit-log-mode=blocking",
            "--audit-log-maxsize=100000",  # MB: `mark` is a place in one file
        )
        self.part_by_name = {**self.part_by_name, API_SERVER: replace(server, argv=(*server.argv, *more))}

    def mark(self) -> int:
        """Where the log ends now, for `requests_since`."""
        return self.audit_log.stat().st_size if self.audit_log.exists() else 0

    def requests_since(self, mark: int) -> Counter[Request]:
        """What was answered since the mark; a watch counts when it ends."""
        with self.audit_log.open("rb") as log:
            log.seek(mark)
            return Counter(request_from_json(orjson.loads(line)) for line in log if line.endswith(b"\n"))


def request_from_json(event: dict[str, Any]) -> Request:
    """An audit event as a kind of request. A dry run is told from the real thing."""
    what = event.get("objectRef") or {}
    resource = "/".join(str(what[part]) for part in ("resource", "subresource") if what.get(part))
    dry = "?dryRun=All" if "dryRun=All" in event.get("requestURI", "") else ""
    user = event["user"]["username"].removeprefix(f"system:serviceaccount:{SYSTEM_NAMESPACE}:")
    return Request(user=user, verb=event["verb"], resource=(resource or "(no resource)") + dry)


def is_upkeep(request: Request) -> bool:
    """True for what goes on though nothing happens: watches end and begin anew, Leases are renewed."""
    return request.verb == "watch" or request.resource == "leases"


def by_kind(requests: Counter[Request], *, per: int = 1) -> dict[str, float]:
    """For the detail: the most frequent first (ties by name), divided by `per`."""
    ordered = sorted(requests.items(), key=lambda item: (-item[1], item[0]))
    return {f"{it.user} {it.verb} {it.resource}": round(count / per, 2) for it, count in ordered}

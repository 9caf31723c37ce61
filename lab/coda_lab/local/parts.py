"""The parts of a cluster: for each one the command line, its environment, and how it says that it is ready."""

from __future__ import annotations

import base64
import json
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field

from coda_kube.certificates import SERVER_NAME
from coda_kube.objects import names
from coda_kube.objects.names import SYSTEM_NAMESPACE
from coda_lab.host.ports import LOOPBACK
from coda_lab.host.processes import python_command
from coda_lab.local.forwarder import PORT_ANNOTATION
from coda_lab.local.machine_commands import agent_command, agent_environ, machines_command
from coda_lab.spec import (
    AGENT,
    EXTENDER,
    FOREIGN_SCHEDULER,
    FORWARDER,
    KUBELETS,
    MACHINES,
    OPERATOR,
    REAL_NODE,
    SCHEDULER,
    SLOW_HEARTBEATS_ABOVE,
    ClusterSpec,
    Layout,
    identity_of,
    metrics_port_of,
)

DEFAULT_PROFILE = "default-scheduler"
"""The scheduler of every pod that names none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One process. `ready_url` answers 200 when it is ready; None: it prints the line `ready`."""

    name: str
    argv: tuple[str, ...]
    port: int
    ready_url: str | None = None
    environ: Mapping[str, str] = field(default_factory=dict)


def control_plane(
    spec: ClusterSpec, layout: Layout, argv_by_part: Mapping[str, tuple[str, ...]], ports: Mapping[str, int]
) -> tuple[Part, ...]:
    """etcd, API server, controllers and scheduler, with flags as a small real cluster has them."""
    flags = {
        "etcd": _etcd(layout, ports),
        "kube-apiserver": _apiserver(spec, layout, ports),
        "kube-controller-manager": _controllers(spec, layout, ports),
        SCHEDULER: (f"--config={layout.scheduler_config}", *_serving(SCHEDULER, layout, ports)),
    }
    programs = dict(argv_by_part)
    if spec.foreign_scheduler:
        programs[FOREIGN_SCHEDULER] = argv_by_part[SCHEDULER]
        config = f"--config={layout.foreign_scheduler_config}"
        flags[FOREIGN_SCHEDULER] = (config, *_serving(FOREIGN_SCHEDULER, layout, ports))
    urls = {name: f"https://{LOOPBACK}:{ports[name]}/readyz" for name in flags}
    urls["kube-controller-manager"] = f"https://{LOOPBACK}:{ports['kube-controller-manager']}/healthz"  # has no readyz
    urls["etcd"] = f"http://{LOOPBACK}:{ports['etcd']}/health"
    return tuple(
        Part(name=name, argv=(*programs[name], *arguments), port=ports[name], ready_url=urls[name])
        for name, arguments in flags.items()
    )


def coda_parts(spec: ClusterSpec, layout: Layout, ports: Mapping[str, int]) -> tuple[Part, ...]:
    """The simulated kubelets, the real node, Coda itself behind the forwarder, and agents on emulated machines."""
    parts: list[Part] = []
    for name in spec.names:
        if name == KUBELETS:
            parts.append(_kubelets(spec, layout, ports[name]))
        elif name == REAL_NODE:
            parts.append(_real_node(spec, layout, ports))
        elif name == FORWARDER:
            arguments = ("--kubeconfig", str(layout.kubeconfig_of(FORWARDER, spec)), "--port", str(ports[name]))
            parts.append(Part(name=name, argv=python_command("coda_lab.local.forwarder", *arguments), port=ports[name]))
        elif name == MACHINES:
            command = machines_command(spec, layout)
            parts.append(Part(name=name, argv=python_command("coda_lab.machines", *command), port=ports[name]))
        elif name.startswith(AGENT):
            parts.append(_agent(name, spec, layout, ports[name]))
        elif name.startswith((OPERATOR, EXTENDER)):
            parts.append(_shell(name, spec, layout, ports))
    return tuple(parts)


def extender_pod(number: int, port: int) -> dict[str, object]:
    """The object that stands for an extender replica: the leader labels it, the forwarder finds its port there."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": f"coda-extender-{number}",
            "namespace": SYSTEM_NAMESPACE,
            "labels": {"app.kubernetes.io/name": "coda", "app.kubernetes.io/component": EXTENDER},
            "annotations": {PORT_ANNOTATION: str(port)},
        },
        "spec": {
            "serviceAccountName": "coda-extender",
            "automountServiceAccountToken": False,
            "schedulingGates": [{"name": "local.coda.scheduler/process"}],  # it runs as a process: never schedule it
            "containers": [{"name": EXTENDER, "image": "coda-extender"}],
        },
    }


def profiles(spec: ClusterSpec) -> tuple[str, ...]:
    """The profiles of the kube-scheduler process that asks the extender: it guards Coda's placements against their
    pods.
    """
    return (names.SCHEDULER,) if spec.foreign_scheduler else (DEFAULT_PROFILE, names.SCHEDULER)


def scheduler_config(spec: ClusterSpec, layout: Layout, forwarder_port: int) -> str:
    """kube-scheduler's configuration: Coda's profile, beside the default one where it is alone, and the extender."""
    config = _scheduler_config(layout, [_profile(name) for name in profiles(spec)])
    if spec.coda:
        config["extenders"] = [
            {
                "urlPrefix": f"https://{LOOPBACK}:{forwarder_port}",
                "enableHTTPS": True,
                "tlsConfig": {
                    "serverName": SERVER_NAME,
                    "certFile": str(layout.tls(SCHEDULER) / "tls.crt"),
                    "keyFile": str(layout.tls(SCHEDULER) / "tls.key"),
                    "caFile": str(layout.tls(SCHEDULER) / "ca.crt"),
                },
                "filterVerb": "filter",
                "prioritizeVerb": "prioritize",
                "preemptVerb": "preempt",
                "weight": 13,  # with less, the in-tree scores (about 1200) would outvote it
                "httpTimeout": "1s",  # it answers in milliseconds; a stalled one delays every pod for this long
                "nodeCacheCapable": True,
                "ignorable": False,  # the local nodes are a shared pool: foreign pods must not pass unseen
            }
        ]
    return json.dumps(config, indent=2)


def foreign_scheduler_config(layout: Layout) -> str:
    """The second kube-scheduler's configuration: the default profile, and nobody to ask."""
    return json.dumps(_scheduler_config(layout, [_profile(DEFAULT_PROFILE)]), indent=2)


def _scheduler_config(layout: Layout, its_profiles: list[dict[str, object]]) -> dict[str, object]:
    return {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "leaderElection": {"leaderElect": False},
        "clientConnection": {"kubeconfig": str(layout.kubeconfig(SCHEDULER)), "qps": 1000, "burst": 2000},
        "podInitialBackoffSeconds": 1,
        "podMaxBackoffSeconds": 2,  # with 10, a fail-over of the extender would cost 10 s more
        "profiles": its_profiles,
    }


def _profile(name: str) -> dict[str, object]:
    if name != names.SCHEDULER:
        return {"schedulerName": name}
    # No single rank of a gang preempts or is preempted: Coda decides about whole gangs.
    return {"schedulerName": name, "plugins": {"postFilter": {"disabled": [{"name": "DefaultPreemption"}]}}}


def account_key() -> str:
    """A new P-256 private key (SEC 1, PEM). The public half is left out: Go derives it."""
    der = bytes.fromhex("30310201010420") + secrets.token_bytes(32) + bytes.fromhex("a00a06082a8648ce3d030107")
    lines = base64.encodebytes(der).decode()
    return f"-----BEGIN EC PRIVATE KEY-----\n{lines}-----END EC PRIVATE KEY-----\n"


def _etcd(layout: Layout, ports: Mapping[str, int]) -> tuple[str, ...]:
    client, peer = (f"http://{LOOPBACK}:{ports[name]}" for name in ("etcd", "etcd-peer"))
    return (
        f"--data-dir={layout.etcd}",
        f"--listen-client-urls={client}",
        f"--advertise-client-urls={client}",
        f"--listen-peer-urls={peer}",
        f"--initial-advertise-peer-urls={peer}",
        f"--initial-cluster=default={peer}",
        "--unsafe-no-fsync",  # the state is thrown away with the cluster
        "--quota-backend-bytes=8589934592",
        "--log-level=warn",
    )


def _apiserver(spec: ClusterSpec, layout: Layout, ports: Mapping[str, int]) -> tuple[str, ...]:
    return (
        f"--etcd-servers=http://{LOOPBACK}:{ports['etcd']}",
        f"--bind-address={LOOPBACK}",
        f"--advertise-address={LOOPBACK}",  # without it a machine that has no default route cannot start
        f"--secure-port={ports['kube-apiserver']}",
        f"--cert-dir={layout.certificate.parent}",
        f"--token-auth-file={layout.credentials / 'tokens.csv'}",
        f"--authorization-mode={'Node,RBAC' if spec.real_node_cores else 'RBAC'}",
        "--service-account-issuer=https://kubernetes.default.svc",
        f"--service-account-key-file={layout.account_key}",
        f"--service-account-signing-key-file={layout.account_key}",
        "--service-cluster-ip-range=10.96.0.0/16",
        "--endpoint-reconciler-type=none",
        "--kubelet-preferred-address-types=InternalIP",
        "--allow-privileged=true",  # as kubeadm has it: runbooks look at nodes by `kubectl debug --profile=sysadmin`
        "--max-requests-inflight=2000",
        "--max-mutating-requests-inflight=1000",
        "--profiling=false",
    )


def _controllers(spec: ClusterSpec, layout: Layout, ports: Mapping[str, int]) -> tuple[str, ...]:
    slow = spec.node_count > SLOW_HEARTBEATS_ABOVE
    return (
        f"--kubeconfig={layout.kubeconfig('kube-controller-manager')}",
        *_serving("kube-controller-manager", layout, ports),
        "--leader-elect=false",
        "--use-service-account-credentials=true",
        f"--service-account-private-key-file={layout.account_key}",
        f"--root-ca-file={layout.certificate}",
        "--kube-api-qps=500",
        "--kube-api-burst=1000",
        f"--node-monitor-period={'5s' if slow else '2s'}",
        f"--node-monitor-grace-period={'10m' if slow else '20s'}",
    )


def _serving(name: str, layout: Layout, ports: Mapping[str, int]) -> tuple[str, ...]:
    return (
        f"--authentication-kubeconfig={layout.kubeconfig(identity_of(name))}",
        f"--authorization-kubeconfig={layout.kubeconfig(identity_of(name))}",
        "--authentication-skip-lookup=true",  # there is no client certificate authority to look up
        "--authorization-always-allow-paths=/healthz,/readyz,/livez,/metrics",
        f"--bind-address={LOOPBACK}",
        f"--secure-port={ports[name]}",
        f"--cert-dir={layout.folder / 'certificates' / name}",
    )


def _kubelets(spec: ClusterSpec, layout: Layout, port: int) -> Part:
    arguments = {
        "--kubeconfig": layout.kubeconfig_of(KUBELETS, spec),
        "--nodes": spec.nodes,
        "--racks": spec.racks,
        "--pods-per-node": spec.pods_per_node,
        "--seats": spec.seats,
        "--port": port,
        "--tls-cert": layout.certificate,
        "--tls-key": layout.certificate.with_suffix(".key"),
    }
    flat = [str(word) for pair in arguments.items() for word in pair]
    return Part(name=KUBELETS, argv=python_command("coda_lab.kubelets", *flat), port=port)


def _real_node(spec: ClusterSpec, layout: Layout, ports: Mapping[str, int]) -> Part:
    arguments = {
        "--folder": layout.real_node,
        "--credentials": layout.credentials,
        "--authority": layout.certificate,
        "--cores": spec.real_node_cores,
        "--api-port": ports["kube-apiserver"],
        "--port": ports[REAL_NODE],
    }
    flat = [str(word) for pair in arguments.items() for word in pair]
    return Part(name=REAL_NODE, argv=python_command("coda_lab.realnode.host_process", *flat), port=ports[REAL_NODE])


def _agent(name: str, spec: ClusterSpec, layout: Layout, port: int) -> Part:
    number = int(name.partition("-")[2])
    argv = python_command("coda_lab.machines.agent", *agent_command(number, spec, layout))
    environ = {"CODA_HOST": LOOPBACK, "CODA_METRICS_PORT": str(port)}
    environ |= {"CODA_KUBECONFIG": str(layout.kubeconfig_of(name, spec)), **agent_environ(number, spec, layout)}
    url = f"http://{LOOPBACK}:{port}/readyz"
    return Part(name=name, argv=argv, port=port, ready_url=url, environ=environ)


def _shell(name: str, spec: ClusterSpec, layout: Layout, ports: Mapping[str, int]) -> Part:
    port = ports[name]
    status_port = ports.get(metrics_port_of(name), port)
    kind, _, number = name.partition("-")
    environ = {
        "CODA_KUBECONFIG": str(layout.kubeconfig_of(name, spec)),
        "CODA_IDENTITY": f"coda-{kind}-{number}",
    }
    if kind == OPERATOR:
        environ |= {
            "CODA_METRICS_PORT": str(port),
            "CODA_POOL_MODE": "shared",
            "CODA_HISTORY_FILE": str(layout.history),
        }
    else:
        environ |= {
            "CODA_HOST": LOOPBACK,
            "CODA_PORT": str(port),
            "CODA_METRICS_PORT": str(status_port),
            "CODA_TLS_DIR": str(layout.tls(EXTENDER)),
            "CODA_POD_NAMESPACE": SYSTEM_NAMESPACE,
            "CODA_POD_NAME": f"coda-{name}",
            "CODA_SCHEDULER_NAMES": ",".join(profiles(spec)),
        }
    url = f"http://{LOOPBACK}:{status_port}/readyz"
    return Part(name=name, argv=python_command(f"coda_{kind}"), port=port, ready_url=url, environ=environ)

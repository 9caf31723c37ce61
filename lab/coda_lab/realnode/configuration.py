"""The configuration of containerd, the network plug-in and the kubelet of the real node. Pure: values in, text out."""

from __future__ import annotations

import base64
import json
import uuid
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any, Final

import yaml

from coda_kube.objects import names
from coda_lab.emulators.nvml.state import STATE_VARIABLE
from coda_lab.realnode.images import PAUSE

NODE: Final = "real-0"
GPUS: Final = 8
KUBELET_ROOT: Final = "/var/lib/kubelet"  # a device plug-in's folder is there with any kubelet option
POD_RESOURCES: Final = f"{KUBELET_ROOT}/pod-resources/kubelet.sock"
CONTAINERD_SOCKET: Final = "/run/containerd/containerd.sock"
SERVICE_ADDRESS: Final = "10.96.0.1:443"
"""Where pods find the API server."""
NVIDIA: Final = "nvidia"
"""The runtime that puts the GPU driver's library into a container, under NVIDIA's name for it."""
NVML_LIBRARY: Final = "/run/nvidia/libnvidia-ml.so.1"
NVML_STATE: Final = "/run/nvidia/state"
NVIDIA_SPEC: Final = "/run/nvidia/spec.json"
LABEL_REAL: Final = f"local.{names.GROUP}/real"

_GPU_NAMESPACE: Final = uuid.UUID("2f1f9a52-6f0a-5d0c-9f4e-0c1d9a7b5e11")  # ours; the same ids in every run
_POD_NETWORK: Final = "10.88.0.0/16"


def gpu_ids(node: str = NODE, count: int = GPUS) -> tuple[str, ...]:
    """The test GPUs' ids, in NVML's form."""
    return tuple(f"GPU-{uuid.uuid5(_GPU_NAMESPACE, f'{node}/{index}')}" for index in range(count))


def containerd_toml(plugins: PurePosixPath) -> str:
    """containerd's configuration, version 3, with our own image for pod sandboxes. `plugins`: the CNI programs."""
    return f"""version = 3
root = "/var/lib/containerd"
state = "/run/containerd"

[grpc]
  address = "{CONTAINERD_SOCKET}"

[plugins."io.containerd.cri.v1.images".pinned_images]
  sandbox = "{PAUSE}"

[plugins."io.containerd.cri.v1.runtime".cni]
  bin_dirs = ["{plugins}"]
  conf_dir = "/etc/cni/net.d"

[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"

[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
  SystemdCgroup = false

[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.{NVIDIA}]
  runtime_type = "io.containerd.runc.v2"
  base_runtime_spec = "{NVIDIA_SPEC}"

[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.{NVIDIA}.options]
  SystemdCgroup = false
"""


def nvidia_spec(spec: Mapping[str, Any]) -> str:
    """The runtime specification of containers under `NVIDIA`: `spec` (of `ctr oci spec`) with the emulated NVML in it.

    NVIDIA's own runtime adds the real library in the same place. The folder of both files is mounted, not the files:
    the state is replaced at every change."""
    folder = str(PurePosixPath(NVML_LIBRARY).parent)
    mounts = [
        _read_only(folder, folder),
        _read_only(NVML_LIBRARY, f"/usr/lib/x86_64-linux-gnu/{PurePosixPath(NVML_LIBRARY).name}"),
    ]
    process = {**spec["process"], "env": [*spec["process"].get("env", ()), f"{STATE_VARIABLE}={NVML_STATE}"]}
    return json.dumps({**spec, "process": process, "mounts": [*spec["mounts"], *mounts]}, indent=1)


def _read_only(source: str, destination: str) -> dict[str, Any]:
    return {"source": source, "destination": destination, "type": "bind", "options": ["rbind", "ro"]}


def cni_conflist() -> str:
    """Pods on one bridge, each with an address of its own. They reach each other and the machine, nothing else."""
    bridge = {
        "type": "bridge",
        "bridge": "pods0",
        "isGateway": True,
        "ipam": {"type": "host-local", "ranges": [[{"subnet": _POD_NETWORK}]], "routes": [{"dst": "0.0.0.0/0"}]},
    }
    return json.dumps({"cniVersion": "1.0.0", "name": "pods", "plugins": [bridge, {"type": "loopback"}]}, indent=1)


def kubelet_yaml(changes: Mapping[str, Any]) -> str:
    """KubeletConfiguration. `changes` replace fields of it, such as {"cpuManagerPolicy": "static"}."""
    settings: dict[str, Any] = {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "cgroupDriver": "cgroupfs",  # there is no systemd in the machine
        "containerRuntimeEndpoint": f"unix://{CONTAINERD_SOCKET}",
        "authentication": {"anonymous": {"enabled": False}, "webhook": {"enabled": True}},
        "authorization": {"mode": "Webhook"},
        "failSwapOn": False,
        "localStorageCapacityIsolation": False,  # cAdvisor knows no memory-only root file system
        "evictionHard": {"memory.available": "0%", "nodefs.available": "0%", "imagefs.available": "0%"},
        "imageGCHighThresholdPercent": 100,  # images come from no registry: never remove one
        "podLogsDir": "/var/log/pods",
        "clusterDNS": ["10.96.0.10"],  # nobody answers there; without a value, every pod gets a warning event
        "nodeStatusUpdateFrequency": "5s",
        "serializeImagePulls": False,
        "runtimeRequestTimeout": "10m",  # with 2 minutes, a machine with little CPU time tries one start again
    }
    return yaml.safe_dump(settings | dict(changes), sort_keys=False)


def portable_kubeconfig(text: str, authority: bytes) -> str:
    """A kubeconfig that contains the authority's certificate, for a machine without its file."""
    config = yaml.safe_load(text)
    for entry in config["clusters"]:
        del entry["cluster"]["certificate-authority"]
        entry["cluster"]["certificate-authority-data"] = base64.b64encode(authority).decode()
    return yaml.safe_dump(config, sort_keys=False)

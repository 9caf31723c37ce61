"""The kubelet's half of the device plugin API on real sockets: it registers plugins, listens to them and allocates.

As the real one (kubelet 1.36): it empties its folder when it starts, calls a plugin back before it answers its
registration, counts devices as unhealthy once a plugin's stream has ended, and gives out only healthy, free ones."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

import grpc

from coda_agent.seats import device_plugin_v1beta1_pb2 as wire

KUBELET = "kubelet.sock"
CHECKPOINT = "kubelet_internal_checkpoint"
_PLUGIN = "/v1beta1.DevicePlugin"


class DeviceManager:
    """Serves in `folder` between entering and leaving its context."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.health: dict[str, dict[str, str]] = {}  # by resource and device
        self.taken: dict[str, tuple[str, str]] = {}  # resource and device, by pod; they outlive a restart
        self.registered: list[str] = []  # resources, as they came
        self._changed = threading.Condition()
        self._server: grpc.Server | None = None
        self._channels: dict[str, grpc.Channel] = {}

    def start(self) -> None:
        """A new process of the kubelet."""
        self.folder.mkdir(parents=True, exist_ok=True)
        for path in self.folder.iterdir():
            if path.name != CHECKPOINT:
                path.unlink()
        self._server = grpc.server(ThreadPoolExecutor(max_workers=4), options=[("grpc.so_reuseport", 0)])
        register = grpc.unary_unary_rpc_method_handler(
            self._register, request_deserializer=wire.RegisterRequest.FromString, response_serializer=_bytes_of
        )
        handlers = grpc.method_handlers_generic_handler("v1beta1.Registration", {"Register": register})
        self._server.add_generic_rpc_handlers((handlers,))
        self._server.add_insecure_port(f"unix:{self.folder / KUBELET}")
        self._server.start()

    def kill(self) -> None:
        """As SIGKILL: connections end, the sockets stay."""
        kept = self.folder / KUBELET
        identity = kept.stat().st_ino
        moved = kept.rename(self.folder / ".kept")  # the library would take it away
        if self._server is not None:
            self._server.stop(grace=None).wait()
            self._server = None
        for channel in self._channels.values():
            channel.close()
        self._channels.clear()
        assert moved.rename(kept).stat().st_ino == identity

    def restart(self) -> None:
        """Killed, and started again."""
        self.kill()
        with self._changed:
            self.health.clear()
        self.start()

    def wait_for(self, claim: Callable[[], bool], within_s: float = 300.0) -> bool:
        """True once it holds. Call it from a thread of its own where the plugin serves in this process."""
        with self._changed:
            return self._changed.wait_for(claim, within_s)

    def healthy(self, resource: str) -> int:
        """How many devices can be given out, or are."""
        return sum(word == "Healthy" for word in self.health.get(resource, {}).values())

    def admit(self, pod: str, resource: str) -> wire.ContainerAllocateResponse | None:
        """Give a pod one device and return what its container gets; None: none is free. Raises grpc.RpcError."""
        given = {device for named, device in self.taken.values() if named == resource}
        free = sorted(one for one, word in self.health.get(resource, {}).items() if word == "Healthy")
        free = [one for one in free if one not in given]
        if not free:
            return None
        request = wire.AllocateRequest(container_requests=[wire.ContainerAllocateRequest(devices_ids=free[:1])])
        answer = wire.AllocateResponse.FromString(self.call(resource, "Allocate", request.SerializeToString()))
        self.taken[pod] = (resource, free[0])
        given_now: wire.ContainerAllocateResponse = answer.container_responses[0]
        return given_now

    def release(self, pod: str) -> None:
        """The pod is gone."""
        del self.taken[pod]

    def call(self, resource: str, method: str, request: bytes) -> bytes:
        """Ask the plugin of a resource anything. Raises grpc.RpcError."""
        ask = self._channels[resource].unary_unary(f"{_PLUGIN}/{method}")
        answer: bytes = ask(request, timeout=300.0, wait_for_ready=False)
        return answer

    def _register(self, request: wire.RegisterRequest, context: grpc.ServicerContext) -> wire.Empty:
        if request.version != "v1beta1":
            context.abort(grpc.StatusCode.UNKNOWN, "requested API version is not supported by kubelet")
        channel = grpc.insecure_channel(
            f"unix:{self.folder / request.endpoint}", options=[("grpc.use_local_subchannel_pool", 1)]
        )
        channel.unary_unary(f"{_PLUGIN}/GetDevicePluginOptions")(b"", timeout=300.0)
        self._channels[request.resource_name] = channel
        threading.Thread(target=self._listen, args=(request.resource_name, channel), daemon=True).start()
        with self._changed:
            self.registered.append(request.resource_name)
            self._changed.notify_all()
        return wire.Empty()

    def _listen(self, resource: str, channel: grpc.Channel) -> None:
        with suppress(grpc.RpcError, ValueError):  # ValueError: the channel was closed
            for message in channel.unary_stream(f"{_PLUGIN}/ListAndWatch")(b""):
                told = wire.ListAndWatchResponse.FromString(message)
                self._note(resource, {device.ID: device.health for device in told.devices})
        self._note(resource, dict.fromkeys(self.health.get(resource, {}), "Unhealthy"))

    def _note(self, resource: str, health: Mapping[str, str]) -> None:
        with self._changed:
            self.health[resource] = dict(health)
            self._changed.notify_all()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._server is not None:
            self.kill()


def _bytes_of(message: wire.Empty) -> bytes:
    return bytes(message.SerializeToString())

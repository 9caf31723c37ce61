"""All seats of this node: what the agent's loop calls once a round. Nothing here holds the loop up.

What may wait (files, and the call to the kubelet) has a thread of its own, so that no GPU is sensed later for it."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from coda.errors import Outage
from coda.model.seats import SHARING
from coda.sharing.config import SharingConfig
from coda_agent.gpus import GpuReading, Health
from coda_agent.gpus.allocations import Grant
from coda_agent.host import StateDir
from coda_agent.seats.device_plugin import GpuAccess, JobFiles, Seat
from coda_agent.seats.framework import install, remove_others
from coda_agent.seats.numbers import FILE, MOST_BYTES, Numbers, number_gpus, numbers_from, numbers_json
from coda_agent.seats.plugin_socket import PluginSocket, kubelet_in, register_with_kubelet
from coda_agent.settings import Settings
from coda_agent.sharing.units import SEAT_PREFIX
from coda_agent.worker_thread import WorkerThread

log = logging.getLogger(__name__)

PLACES: Final = 128
"""How many pods of a node can have these at a time. Our choice: more than pods that 16 GPUs can have."""

COPY_AGAIN_S: Final = 60.0
"""Seconds until the files are copied again where that failed."""

_OURS: Final = (SEAT_PREFIX, SHARING)


class Seats:
    """Serves the kubelet of this node."""

    def __init__(
        self,
        settings: Settings,
        state_dir: StateDir,
        clock: Callable[[], float] = time.monotonic,
        register: Callable[[Path, str, str], None] = register_with_kubelet,
    ) -> None:
        """`clock`: seconds that never jump. `register`: how a resource becomes known to the kubelet."""
        self._folder, self._clock, self._register = settings.device_plugins, clock, register
        self._bundle, self._framework = settings.sharing_bundle, settings.sharing_framework
        self._access = GpuAccess(settings.sharing_gpu_access)
        self._socket = settings.sharing_socket
        self._state_dir = state_dir
        self._thread = WorkerThread("seats")
        self._step: asyncio.Task[tuple[str, ...]] | None = None
        self._problems: tuple[str, ...] = ()
        self._numbers: Numbers | None = None  # as they are on the disk
        self._files: JobFiles | None = None
        self._copy_at_s = float("-inf")
        self._copy_problem: tuple[str, ...] = ()
        self._are_others_removed = False
        self._sockets: dict[str, PluginSocket] = {}
        self._is_ending = False

    @property
    def number_by_gpu(self) -> Mapping[str, int]:
        """The n of `coda.scheduler/gpu-<n>`, by UUID."""
        return {uuid: one.number for uuid, one in (self._numbers or {}).items()}

    def round(self, readings: Sequence[GpuReading], grants: Sequence[Grant] | None) -> tuple[str, ...]:
        """Begin to bring everything up to date, unless that is under way. Return what went wrong the last time.

        readings: empty while the driver has not answered; grants: None where the kubelet has not said them"""
        if self._step is not None and self._step.done():
            step, self._step = self._step, None
            try:
                self._problems = step.result()
            except OSError as error:  # a file of this node; the agent has more to do than seats
                self._problems = (f"GPUs cannot be shared ({error.strerror or error})",)
        if self._step is None and not self._is_ending:
            self._step = asyncio.ensure_future(self._bring_up_to_date(tuple(readings), grants))
        return self._problems

    async def settled(self) -> None:
        """Wait until what the last round began has ended."""
        if self._step is not None:
            await asyncio.wait({self._step})

    async def stop(self) -> None:
        """Take the seats back from the kubelet. Pods keep theirs, and the files stay. Waits for no thread."""
        self._is_ending = True
        if self._step is not None:
            self._step.cancel()
            await asyncio.gather(self._step, return_exceptions=True)
        for one in self._sockets.values():
            one.stop()
        self._thread.end()

    async def _bring_up_to_date(
        self, readings: tuple[GpuReading, ...], grants: Sequence[Grant] | None
    ) -> tuple[str, ...]:
        await self._copy_files()
        problems = list(self._copy_problem)
        try:
            await self._number(readings)
        except Outage as outage:
            return (*problems, str(outage))
        self._offer(readings)
        problems += await self._be_known()
        if grants is not None and self._files is not None and not self._are_others_removed:
            await self._remove_other_versions(self._files, grants)
        return tuple(problems)

    async def _copy_files(self) -> None:
        if self._files is not None and await self._thread.do(self._files.framework.is_dir):
            return
        self._files = None
        if self._clock() - self._copy_at_s < COPY_AGAIN_S:
            return
        self._copy_at_s = self._clock()
        try:
            found = await self._thread.do(lambda: install(self._bundle, self._framework))
        except Outage as outage:
            self._copy_problem = (str(outage),)
            return
        self._files, self._copy_problem = JobFiles(framework=found, socket=self._socket), ()
        self._copy_at_s = float("-inf")

    async def _number(self, readings: Sequence[GpuReading]) -> None:
        """Raises Outage: the numbers are not on the disk, and a resource might later mean another GPU."""
        try:
            if self._numbers is None:
                self._numbers = await self._thread.do(self._read_numbers)
            numbers = number_gpus(self._numbers, (reading.gpu for reading in readings))
            if numbers is not self._numbers:
                await self._thread.do(lambda: self._state_dir.replace(FILE, numbers_json(numbers)))
                self._numbers = numbers
        except OSError as error:
            raise Outage(f"GPUs cannot be shared: their numbers cannot be kept ({error.strerror or error})") from error

    def _read_numbers(self) -> Numbers:
        content = self._state_dir.read(FILE, most_bytes=MOST_BYTES)
        numbers = numbers_from(content) if content else {}
        if numbers is None:
            log.error("the numbers of this node's GPUs cannot be read: they are numbered again, in order of the bus")
            return {}
        return numbers

    def _offer(self, readings: Sequence[GpuReading]) -> None:
        """Seats of every GPU that was ever here: of one that is gone there are none, and that is said."""
        by_number = {self.number_by_gpu[one.gpu.uuid]: one for one in readings if one.gpu.uuid in self.number_by_gpu}
        for number in sorted(by_number.keys() | {n for n in self.number_by_gpu.values() if self._has(n)}):
            reading = by_number.get(number)
            seats = () if reading is None or reading.gpu.mig else self._seats_on(reading)
            self._socket_of(f"{SEAT_PREFIX}{number}").offer(seats)
        if readings:
            has_files = self._files is not None
            places = [Seat(id=f"place-{number}", gpu=None, is_well=has_files) for number in range(PLACES)]
            self._socket_of(SHARING).offer(places)

    def _seats_on(self, reading: GpuReading) -> tuple[Seat, ...]:
        is_well = reading.health is not Health.LOST and self._files is not None
        gpu = reading.gpu
        nodes = tuple(sorted(gpu.numa_nodes))
        return tuple(
            Seat(id=f"{gpu.uuid}::{seat}", gpu=gpu.uuid, is_well=is_well, numa_nodes=nodes)
            for seat in range(SharingConfig().seats)
        )

    def _has(self, number: int) -> bool:
        return f"{SEAT_PREFIX}{number}" in self._sockets

    def _socket_of(self, resource: str) -> PluginSocket:
        if resource not in self._sockets:
            self._sockets[resource] = PluginSocket(self._folder, resource, self._access, lambda: self._files)
        return self._sockets[resource]

    async def _be_known(self) -> list[str]:
        problems: list[str] = []
        for resource, one in self._sockets.items():
            try:
                await one.listen()
                kubelet = kubelet_in(self._folder)
                if kubelet is None or not one.must_register(kubelet, self._clock()):
                    continue
                await self._make_known(resource, one, kubelet)
            except Outage as outage:
                problems.append(str(outage))
        return problems

    async def _make_known(self, resource: str, one: PluginSocket, kubelet: tuple[int, int]) -> None:
        """Raises Outage."""
        is_known = False
        try:
            await self._thread.do(lambda: self._register(self._folder, resource, one.endpoint))
            is_known = True
            log.info("the kubelet knows %s", resource)
        finally:
            one.note_try(kubelet, self._clock(), is_known=is_known)

    async def _remove_other_versions(self, files: JobFiles, grants: Sequence[Grant]) -> None:
        """Once nobody can have one mounted: a container keeps what it was given for as long as its pod lives."""
        if any(resource.startswith(_OURS) for grant in grants for resource, _id in grant.device_ids):
            return
        await self._thread.do(lambda: remove_others(self._framework, files.framework))
        self._are_others_removed = True

"""Everything of one node that the agent holds open: kernel trees, sensors, journal, actuator. Made once, at start.

Undoing comes first: otherwise the agent would take what an earlier agent left for the node's own values."""

from __future__ import annotations

import logging
import os
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import Final

from coda.contention import Action, Hardware, Means
from coda.errors import Outage
from coda_agent.bandwidth.calibrate import CalibrationPlan, Clock, calibrate
from coda_agent.bandwidth.controllers import (
    by_socket,
    controllers_lacks,
    domains_by_socket,
    limits_by_socket,
    socket_by_domain,
)
from coda_agent.bandwidth.dimm_speed import read_memory_bytes_per_s
from coda_agent.bandwidth.peak import (
    SUSTAINED_WINDOWS,
    Peak,
    PeakSource,
    choose_peak,
    first_peak_after,
    load_peak,
    machine_name,
    raise_peak,
    save_peak,
    settled_peak,
    sustained_rates,
)
from coda_agent.cgroups import Layout, PodCgroup, find_layout, list_containers, list_pods
from coda_agent.gpus.driver_process import DriverProcess
from coda_agent.gpus.known_gpus import KnownGpus
from coda_agent.gpus.pod_resources import PodResources
from coda_agent.gpus.processes import ProcessOwners
from coda_agent.host import Files, StateDir, UndoJournal
from coda_agent.resctrl import (
    Abilities,
    GroupOutcome,
    Groups,
    PodGroups,
    TrafficMeter,
    domain_by_cpu,
    probe_abilities,
)
from coda_agent.sensor import GpuSource, Sensor
from coda_agent.settings import Settings
from coda_agent.throttling import (
    Actuator,
    Restoration,
    ThrottleInForce,
    ToldThrottles,
    boot_id,
    in_force,
    restore_node,
)
from coda_agent.throttling.followed_pods import most_pods

log = logging.getLogger(__name__)

GB = 1e9

CHECK: Final = "check"
"""The group that shows whether pods can have one, in place of a pod's uid."""

NO_GROUPS_AT_ALL: Final = "groups cannot be made in resctrl (refused, read-only, or unknown): nobody is throttled"

LOOK_AGAIN_S: Final = 60.0
"""Seconds between two looks at what resctrl can do here, and which CPUs there are. Our choice: a few file reads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """Which logical CPUs share which memory bandwidth."""

    cores: int
    cpus_by_socket: Mapping[int, frozenset[int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Carried:
    """What became of actions. `problems`: one sentence per thing that is not as decided.

    `done`: without a problem, and ends of what was in force. `refused`: throttles that cannot be made here now."""

    done: tuple[Action, ...] = ()
    refused: tuple[Action, ...] = ()
    problems: tuple[str, ...] = ()


class Node:
    """This node, as the agent works on it. One thread at a time."""

    def __init__(
        self,
        settings: Settings,
        *,
        files: Files | None = None,
        pod_resources: PodResources | None = None,
        gpus: GpuSource | None = None,
        reads_only: bool = False,
    ) -> None:
        """Open the node, and put back what an earlier agent left.

        `reads_only`: nothing is written to the node, and nothing put back. `files`, `pod_resources`, `gpus`: for
        emulated nodes; None: as the settings say. Raises Outage if another agent works here, or the state directory
        cannot be used."""
        # 1. Undo what an earlier agent left.
        self.reads_only = reads_only
        self._is_ending = False
        self._files = settings.files() if files is None else files
        self._boot = boot_id(self._files)
        self.state_dir = StateDir(settings.state_dir)
        self._journal = UndoJournal(self.state_dir)
        self._layout = _find_layout(self._files)
        self._probed = self.abilities = probe_abilities(self._files)
        self._groups = self._open_groups()
        self.restoration = Restoration() if reads_only else self.restore()

        # 2. Its sensors, and what is known about its peak bandwidth.
        self.gpus: GpuSource = DriverProcess() if gpus is None else gpus
        self.sensor = Sensor(
            files=self._files,
            layout=self._layout,
            gpus=self.gpus,
            pod_resources=PodResources(settings.pod_resources) if pod_resources is None else pod_resources,
            owners=ProcessOwners(self._files),
            meter=None,
            known_gpus=KnownGpus(self.state_dir, boot=self._boot, reads_only=reads_only),
        )
        self._machine = machine_name(self._files)
        self._memory: float | None = None  # what its modules move, bytes/s
        self._configured_peaks = {socket: peak * GB for socket, peak in settings.peak_gb_per_s.items()}

        # 3. What the hardware can do, and what writes to it.
        self._socket_by_domain = socket_by_domain(self._files, self._probed.domains)
        self.topology = _read_topology(self._files, self._socket_by_domain)
        self._must_check = False  # whether a class of service is free
        self._told = ToldThrottles()
        self._equip(self._check_throttle_group())
        self._looked_at_s: float | None = None

    def look_again(self, now_s: float) -> None:
        """Find out once a minute whether resctrl, its domains, the CPUs or the pods' cgroups have changed; use them.

        Whether a class of service is free is looked at where none was, and at once where a throttle got none.

        Not while throttles are in force: what would undo them knows the old ones."""
        if self._looked_at_s is None:
            self._looked_at_s = now_s
        is_due = now_s - self._looked_at_s >= LOOK_AGAIN_S or self._must_check
        if not is_due or self._journal.entries or self._is_ending:
            return
        self._looked_at_s = now_s
        probed = probe_abilities(self._files)
        sockets = socket_by_domain(self._files, probed.domains)
        topology, layout = _read_topology(self._files, sockets), self._present_layout()
        before = (self._probed, self.topology, self._socket_by_domain, self._layout)
        is_same = (probed, topology, sockets, layout) == before
        if is_same and self.abilities == probed and not self._must_check:
            return
        self._probed, self.topology, self._socket_by_domain, self._layout = probed, topology, sockets, layout
        self._groups = self._groups if is_same else self._open_groups()
        self._must_check, abilities = False, self._check_throttle_group()
        if is_same and abilities == self.abilities:
            return
        log.info("this node has changed: %s, %s", abilities, layout)
        self._equip(abilities)

    def _present_layout(self) -> Layout | None:
        """Where the pods are; looked for again while none runs: the kubelet begins, or has changed its driver."""
        files, layout = self._files, self._layout
        try:
            pods = () if layout is None else list_pods(files, layout).values()
            if layout is not None and any(list_containers(files, layout, pod.path) for pod in pods):
                return layout
            return find_layout(files) or layout
        except OSError:
            return layout

    def _equip(self, abilities: Abilities) -> None:
        """Make everything that depends on what resctrl can do now."""
        self.abilities = abilities
        self._controllers_lacks = controllers_lacks(self._files, self._probed.domains)
        self._recent_totals: deque[Mapping[int, float | None]] = deque(maxlen=SUSTAINED_WINDOWS)
        self.peak = self._first_peak(self._configured_peaks)
        self._unraised_peak, self._peak_raised_at_s = self.peak, 0.0
        self.hardware = self._hardware()
        self.sensor.socket_by_domain = self._socket_by_domain
        self.sensor.layout = self._layout
        self.sensor.meter = TrafficMeter(self._files, self.abilities.domains) if self.abilities.monitoring else None
        self._pod_groups = self._open_pod_groups()
        if self._groups is not None and not self.abilities.following and not self.reads_only:
            self._groups.remove_all()  # of pods that were followed before
        self._actuator = Actuator(
            files=self._files,
            layout=self._layout,
            groups=self._groups if self.abilities.limiting else None,
            domains_by_socket=domains_by_socket(self._socket_by_domain),
            journal=self._journal,
            now_s=time.time,
            boot_id=self._boot,
        )

    @property
    def limits_cores(self) -> bool:
        """True if CPU limits of pods can be lowered here."""
        return self._layout is not None

    @property
    def throttles(self) -> tuple[ThrottleInForce, ...]:
        """What the agent has changed and not yet put back."""
        return in_force(self._journal.entries)

    def restore(self) -> Restoration:
        """Undo everything temporary. Safe to repeat."""
        return restore_node(
            files=self._files, layout=self._layout, groups=self._groups, journal=self._journal, boot=self._boot
        )

    def restore_at_end(self) -> Restoration:
        """Undo everything temporary, and change nothing more. For another thread, if the node's own one hangs."""
        self._is_ending = True
        return self.restore()

    def refresh_pod_groups(
        self, cgroups: Mapping[str, PodCgroup], worth: Mapping[str, float], uncounted: Collection[str]
    ) -> tuple[str, ...]:
        """Give pods their bandwidth groups, each with a counter. `worth`: of following a pod, for those to follow.

        `uncounted`: pods without a counter in the last window."""
        if self._pod_groups is None or self._is_ending:
            return ()
        return self._pod_groups.refresh(cgroups, worth, uncounted)

    @property
    def lacks(self) -> tuple[str, ...]:
        """A sentence for each thing about memory bandwidth and cores that cannot be done or measured here."""
        of_pods = () if self._pod_groups is None else self._pod_groups.lacks
        of_counters = () if self.sensor.meter is None else self.sensor.meter.lacks
        return (*self.abilities.lacks, *self._controllers_lacks, *of_pods, *of_counters, *self.sensor.lacks)

    def carry_out(self, actions: tuple[Action, ...]) -> Carried:
        """Carry out the actions."""
        if self._is_ending:
            return Carried()
        done, refused, problems = list[Action](), list[Action](), list[str]()
        for action in actions:
            found = self._actuator.carry_out(action)
            problems += found
            if action.ends or not found:
                done.append(action)
            elif action.means is Means.BANDWIDTH and self._actuator.refuses_bandwidth:
                refused.append(action)
        self._must_check |= bool(refused)
        return Carried(done=self._told.to_tell(tuple(done)), refused=tuple(refused), problems=tuple(problems))

    def restore_lost(self, present: frozenset[str]) -> Carried:
        """Restore throttles that were lost, of pods that are `present`. `done`: those that failed before."""
        if self._is_ending:
            return Carried()
        problems = self._actuator.restore_lost(present)
        self._told.forget_absent(present)
        return Carried(done=self._told.to_tell(self._actuator.take_late()), problems=problems)

    def learn_peak(self, totals: Mapping[int, float | None], now_s: float) -> tuple[str, ...]:
        """Raise the peak if traffic exceeds it in several windows in a row; return one sentence if so.

        `totals`: bytes/s by socket, in this window, which ended at `now_s`."""
        self._recent_totals.append(totals)
        if self.peak is None or self._unraised_peak is None:
            return ()
        rates = sustained_rates(tuple(self._recent_totals))
        self._unraised_peak = first_peak_after(self._unraised_peak, rates)
        settled = settled_peak(self.peak, self._unraised_peak, now_s - self._peak_raised_at_s)
        if settled is not self.peak:
            self._set_peak(settled)
            self._peak_raised_at_s = now_s
        higher = raise_peak(self.peak, rates)
        higher = settled_peak(higher, self._unraised_peak, 0.0)
        if higher.bytes_per_s == self.peak.bytes_per_s:
            return ()
        self._set_peak(higher)
        self._peak_raised_at_s = now_s
        return ("memory traffic exceeded the peak bandwidth that was believed: the peak was raised",)

    def calibrate(self, gpu_pods: Collection[str], is_over: Callable[[], bool]) -> tuple[str, ...]:
        """Measure the peak bandwidth if it is neither configured nor measured, and the node is idle.

        `gpu_pods`: pods with GPUs. `is_over`: whether somebody needs the node now; then the load ends within a second.
        Return one sentence if it was not possible. Cost: all cores for about 15 s."""
        if not self.lacks_measured_peak or self._groups is None:
            return ()
        clock = Clock(now_s=time.monotonic, wait=time.sleep, is_over=lambda: self._is_ending or is_over())
        try:
            found = calibrate(self._files, self._groups, self.abilities.domains, CalibrationPlan(), clock, gpu_pods)
            sums = by_socket(found.bytes_per_s, self._socket_by_domain)
            rates = {socket: rate for socket, rate in sums.items() if rate is not None}
            self._set_peak(Peak(bytes_per_s=rates, source=PeakSource.MEASURED))
        except Outage as outage:
            return (str(outage),)
        return ()

    @property
    def lacks_measured_peak(self) -> bool:
        """True if bandwidth is measured, but its peak is only computed, or unknown."""
        return self.abilities.monitoring and (self.peak is None or self.peak.source is PeakSource.THEORETICAL)

    def close(self) -> None:
        """Let another process work on this node."""
        self.gpus.close()
        self._journal.close()

    def _check_throttle_group(self) -> Abilities:
        """What the hardware can do for this agent: other programs may have taken every class of service."""
        found = self._probed
        if self._groups is None or not found.limiting or self.reads_only:
            return found
        try:
            outcome = self._groups.add_throttle()
            self._groups.remove_throttle()
            pods = GroupOutcome.DONE if outcome is not GroupOutcome.UNSUPPORTED else self._groups.add_pod(CHECK)
            self._groups.remove_pod(CHECK)
        except OSError as error:
            log.warning("whether a class of service is free cannot be told: %s", error)
            return found
        if outcome in (GroupOutcome.DONE, GroupOutcome.RETRY):
            return found
        if pods is GroupOutcome.UNSUPPORTED:
            return replace(found, limiting=False, following=False, lacks=(*found.lacks, NO_GROUPS_AT_ALL))
        lack = f"no class of service can be had for throttled pods ({outcome.value}): cores are halved instead"
        return replace(found, limiting=False, lacks=(*found.lacks, lack))

    def _first_peak(self, configured: Mapping[int, float]) -> Peak | None:
        if configured:
            return Peak(bytes_per_s=dict(sorted(configured.items())), source=PeakSource.CONFIGURED)
        self._memory = memory = read_memory_bytes_per_s(self._files)
        measured = load_peak(self.state_dir, self._machine, memory)
        sockets = set(self._socket_by_domain.values())
        return choose_peak(sockets, configured_bytes_per_s=None, measured=measured, memory=memory)

    def _set_peak(self, peak: Peak) -> None:
        self.peak = peak
        self.hardware = self._hardware()
        if peak.source is not PeakSource.MEASURED:
            return
        try:
            save_peak(self.state_dir, self._machine, self._memory, peak)
        except OSError as error:
            log.warning("the measured peak bandwidth is not kept over a restart: %s", error)

    def _hardware(self) -> Hardware:
        peaks = {} if self.peak is None else self.peak.bytes_per_s
        sockets = set(self._socket_by_domain.values())
        here = {socket: rate for socket, rate in peaks.items() if socket in sockets}
        limits = limits_by_socket(self.abilities, here, self._socket_by_domain)
        return Hardware(peak_bytes_per_s=here, limits=limits)

    def _open_groups(self) -> Groups | None:
        return Groups(self._files) if self._probed.monitoring or self._probed.limiting else None

    def _open_pod_groups(self) -> PodGroups | None:
        is_possible = self.abilities.monitoring and self.abilities.following
        if self._groups is None or self._layout is None or not is_possible:
            return None
        most = most_pods(len(self.abilities.domains), self.abilities.rmids)
        return PodGroups(self._files, self._layout, self._groups, most)


def _find_layout(files: Files) -> Layout | None:
    try:
        return find_layout(files)
    except OSError as error:
        raise Outage(f"the cgroup tree at {files.cgroup.path} cannot be read: {error}") from error


def _read_topology(files: Files, socket_by: Mapping[int, int]) -> Topology:
    socket_by_cpu = {cpu: socket_by.get(domain, domain) for cpu, domain in domain_by_cpu(files).items()}
    sockets = {
        socket: frozenset(c for c, s in socket_by_cpu.items() if s == socket) for socket in socket_by_cpu.values()
    }
    return Topology(cores=len(socket_by_cpu) or os.cpu_count() or 1, cpus_by_socket=dict(sorted(sockets.items())))

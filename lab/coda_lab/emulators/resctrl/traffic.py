"""The effect of the machine's threads on its counters over time (12, 13), and the kernel's bandwidth controller.

A load's traffic is spread evenly over its living threads, and counted in the group of each; a load without threads
counts in the root.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

from coda_lab.emulators.load import Load, Served, Supply, serve
from coda_lab.emulators.resctrl.machine import Machine

STEP_S = 1.0  # the kernel looks at its counters once a second
EIGHTH_BYTES_PER_S = 125_000_000
Share = tuple[int, int]  # class of service, monitoring id


def advance(machine: Machine, seconds: float) -> None:
    """Let `seconds` of fake time pass, in steps of at most one."""
    with machine.lock:
        while seconds > 1e-9:
            step_s = min(STEP_S, seconds)
            _step(machine, step_s)
            seconds -= step_s


def served_shares(machine: Machine) -> Mapping[str, float]:
    """For every load the part (0..1) of its demand that it got in the last step; 1 for one that wants nothing."""
    with machine.lock:
        return {
            name: machine.rates.get(name, 0.0) / load.bytes_per_s if load.bytes_per_s else 1.0
            for name, load in machine.loads.items()
        }


def _step(machine: Machine, step_s: float) -> None:
    pieces = _pieces(machine)
    served = serve([load for load, _ in pieces.values()], _supply(machine))
    machine.rates = dict.fromkeys(machine.loads, 0.0)
    for name, (load, (_, rmid)) in pieces.items():
        rate = served.bytes_per_s[name]
        machine.rates[_load_of(name)] += rate
        if machine.profile.monitoring is not None:
            moved = rate * step_s
            machine.counters.count(rmid, load.domain, moved, moved * (1.0 - load.remote_share))
    _control(machine, pieces, served)
    machine.now_s += step_s


def _load_of(piece: str) -> str:
    return piece.rpartition("@")[0]


def _pieces(machine: Machine) -> dict[str, tuple[Load, Share]]:
    """Every load, split by the groups that its threads are in."""
    homes: dict[str, Counter[Share]] = {name: Counter() for name in machine.loads}
    for task in machine.tasks.all():
        if task.load in homes:
            homes[task.load][task.closid, task.rmid] += 1
    pieces: dict[str, tuple[Load, Share]] = {}
    for name, load in machine.loads.items():
        here = homes[name] or Counter({(0, 0): 1})
        threads = here.total()
        for index, (share, count) in enumerate(sorted(here.items())):
            part = count / threads
            piece = replace(
                load,
                name=f"{name}@{share[0]}.{share[1]}",
                cores=load.cores * part,
                bytes_per_s=load.bytes_per_s * part,
                dma_bytes_per_s=0.0 if index else load.dma_bytes_per_s,
                limit_group=str(share[0]),
            )
            pieces[piece.name] = (piece, share)
    return pieces


def _supply(machine: Machine) -> Supply:
    profile = machine.profile
    supply = Supply(peak_bytes_per_s=profile.peak_bytes_per_s, core_bytes_per_s=profile.core_bytes_per_s)
    limiting = profile.limiting
    if limiting is None:
        return supply
    values = {
        (str(group.closid), domain): value
        for group in machine.controls()
        for domain, value in group.values["MB"].items()
    }
    if limiting.in_mib:
        percents = {(str(closid), domain): percent for (closid, domain), percent in machine.hidden_percents.items()}
        return replace(supply, percents=percents, siblings_share=limiting.thread_throttle_mode == "max")
    if not limiting.linear:
        totals = {key: value * EIGHTH_BYTES_PER_S for key, value in values.items() if value < limiting.most}
        return replace(supply, totals_bytes_per_s=totals)
    percents = {key: float(value) for key, value in values.items()}
    return replace(supply, percents=percents, siblings_share=limiting.thread_throttle_mode == "max")


def _control(machine: Machine, pieces: Mapping[str, tuple[Load, Share]], served: Served) -> None:
    """mba_MBps: the hidden percentage goes one granule towards the limit (kernel: update_mba_bw)."""
    limiting = machine.profile.limiting
    if limiting is None or not limiting.in_mib:
        return
    for group in machine.controls():
        for domain, limit_mib in group.values["MB"].items():
            key = (group.closid, domain)
            percent = machine.hidden_percents.get(key, 100.0)
            mine = (name for name, (load, share) in pieces.items() if (share[0], load.domain) == key)
            now_mib = sum(served.bytes_per_s[name] for name in mine) / (1 << 20)
            if limit_mib < now_mib and percent > limiting.least:
                percent -= limiting.granularity
            elif percent < 100 and limit_mib > now_mib * (percent + limiting.least) / percent:
                percent += limiting.granularity
            machine.hidden_percents[key] = percent

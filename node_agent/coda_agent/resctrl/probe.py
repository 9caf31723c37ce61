"""What the node's hardware and kernel can do about memory bandwidth, found by reading, never by version.

Monitoring and limiting exist apart from each other. Nothing is written. Source: `resctrl.rst`. Support is the existence
of a directory, because a least value of 0 is real on AMD."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from coda.contention.throttles import absolute_limits, percent_limits
from coda_agent.host import Files, Tree
from coda_agent.resctrl.layout import MON_GROUPS, NO_GROUPS, inside, is_ours
from coda_agent.resctrl.schemata import bandwidth_limits

ENDLESS_MIB = 4_294_967_295  # the kernel's unlimited value with mba_MBps
_DOMAIN = re.compile(r"mon_L3_([0-9]{1,10})\Z")  # 32 bits: on Arm the ids come from firmware


class Unit(Enum):
    """What a limit's number means. The value is in bytes/s, or 0 where it depends on the running cores."""

    PERCENT = 0
    MIB_PER_S = 1 << 20
    EIGHTHS = 125_000_000  # of a GB/s


@dataclass(frozen=True, slots=True, kw_only=True)
class Abilities:
    """What resctrl offers here. `lacks`: a sentence for each thing that is missing or not understood.

    `domains` are those that can be measured or limited. `closids` and `rmids` include the root's own. `following`:
    pods may have monitoring groups; without, only the node's total is measured."""

    monitoring: bool = False
    following: bool = True
    limiting: bool = False
    domains: tuple[int, ...] = ()
    unit: Unit = Unit.PERCENT
    unlimited: int = 0
    least: int = 0
    granularity: int = 1
    closids: int | None = None
    rmids: int | None = None
    lacks: tuple[str, ...] = ()


def probe_abilities(files: Files) -> Abilities:
    """Return the abilities of this node. Never raises: what cannot be read is missing, with a sentence."""
    tree = files.resctrl
    try:
        names = tree.listdir("info")
    except OSError as failure:
        return Abilities(lacks=(_why_absent(files, failure),))
    monitored, lacks = _monitored_domains(tree)
    options = _mount_options(files)
    limits = _root_limits(tree) if "MB" in names else {}
    if "MB" not in names:
        lacks = (*lacks, "the hardware has no bandwidth allocation")
    elif not limits:
        lacks = (*lacks, "the root's schemata has no line of bandwidth limits")
    elif owner := _owner_of_cpus(tree):
        limits = {}
        lacks = (*lacks, f"group {owner} of another program has CPUs of its own: limits would take pods out of it")
    counting = _counter_of_cpus(tree)
    if counting:
        lacks = (
            *lacks,
            f"{counting} of another program counts what runs on its CPUs: no pod is taken out of its counts",
        )
    unit = _unit(tree, options, limits)
    return Abilities(
        monitoring=bool(monitored),
        following=counting is None,
        limiting=bool(limits),
        domains=tuple(sorted({*monitored, *limits})),
        unit=unit,
        unlimited=ENDLESS_MIB if unit is Unit.MIB_PER_S else max(limits.values(), default=0),
        least=_number(tree, "info/MB/min_bandwidth") or 0,
        granularity=max(1, _number(tree, "info/MB/bandwidth_gran") or 1),
        closids=_closids(tree, names),
        rmids=_number(tree, "info/L3_MON/num_rmids"),
        lacks=lacks,
    )


def limits_by_domain(abilities: Abilities, peak_bytes_per_s: Mapping[int, float]) -> Mapping[int, tuple[int, ...]]:
    """Return `coda.contention.throttles.Hardware.limits`, for domains with a peak; empty if nothing can be limited."""
    if not abilities.limiting:
        return {}
    if abilities.unit is Unit.PERCENT:
        limits = percent_limits(abilities.least, abilities.granularity, abilities.unlimited or 100)
        return dict.fromkeys(peak_bytes_per_s, limits)
    return {
        domain: absolute_limits(abilities.unlimited, peak, abilities.unit.value)
        for domain, peak in peak_bytes_per_s.items()
    }


def domain_by_cpu(files: Files) -> Mapping[int, int]:
    """Return the domain of every CPU: the id of its last-level cache. Unreadable CPUs are left out."""
    tree = files.sys
    try:
        names = tree.listdir("devices/system/cpu")
    except OSError:
        return {}
    cpus = sorted(int(name[3:]) for name in names if re.fullmatch(r"cpu[0-9]{1,6}", name))
    found = ((cpu, _number(tree, f"devices/system/cpu/cpu{cpu}/cache/index3/id")) for cpu in cpus)
    return {cpu: domain for cpu, domain in found if domain is not None}


def domain_of(directory: str) -> int | None:
    """Return the domain of a directory in `mon_data`; None for kinds that are not a last-level cache."""
    match = _DOMAIN.match(directory)
    return None if match is None else int(match[1])


def _monitored_domains(tree: Tree) -> tuple[tuple[int, ...], tuple[str, ...]]:
    features = (_text(tree, "info/L3_MON/mon_features") or "").split()
    if "mbm_total_bytes" not in features:
        return (), ("the hardware has no bandwidth monitoring",)
    try:
        domains = [domain for name in tree.listdir("mon_data") if (domain := domain_of(name)) is not None]
    except OSError as failure:
        return (), (f"mon_data cannot be read ({failure.strerror})",)
    return tuple(sorted(domains)), () if domains else ("mon_data has no last-level cache",)


def _root_limits(tree: Tree) -> Mapping[int, int]:
    return bandwidth_limits(_text(tree, "schemata") or "")


def _owner_of_cpus(tree: Tree) -> str | None:
    """Another program's control group that has all threads on some CPUs, unless they are in a group themselves.

    A thread that is moved into the throttle group leaves it, with its cache and limits. Source: `resctrl.rst`,
    "Resource allocation rules"."""
    groups = (name for name in tree.directories(".") if name not in NO_GROUPS and not is_ours(name))
    return next((name for name in groups if _text(tree, f"{name}/cpus_list")), None)


def _counter_of_cpus(tree: Tree) -> str | None:
    """Another program's monitoring group that counts all threads on some CPUs, unless they are in one themselves.

    `pqos` with the OS interface has such groups. A pod's threads that get a group of their own leave its counts without
    a word. Source: `resctrl.rst`, "Resource monitoring rules"."""
    for control in ("", *(name for name in _directories(tree, ".") if name not in NO_GROUPS)):
        for name in _directories(tree, inside(control, MON_GROUPS)):
            group = f"{inside(control, MON_GROUPS)}/{name}"
            if not is_ours(name) and _text(tree, f"{group}/cpus_list"):
                return group
    return None


def _directories(tree: Tree, path: str) -> tuple[str, ...]:
    try:
        return tree.directories(path)
    except OSError:
        return ()


def _unit(tree: Tree, options: str, limits: Mapping[int, int]) -> Unit:
    """Percentages need a linear scale and never exceed 100: the mount options are not always visible."""
    if _number(tree, "info/MB/delay_linear") == 0:
        return Unit.EIGHTHS
    if "mba_MBps" in options.split(",") or max(limits.values(), default=0) > 100:
        return Unit.MIB_PER_S
    return Unit.PERCENT


def _why_absent(files: Files, failure: OSError) -> str:
    """resctrl can be mounted once: where the host has it elsewhere, another mount is refused."""
    elsewhere = _mount_of(files, "1/mounts") or _mount_of(files, "mounts")
    if elsewhere:
        return f"the host has resctrl at {elsewhere[1]}, and the agent sees none at {files.resctrl.path}"
    return f"resctrl is not there ({failure.strerror}): mount it on the host"


def _mount_options(files: Files) -> str:
    found = _mount_of(files, "mounts")
    return found[3] if found else ""


def _mount_of(files: Files, table: str) -> list[str] | None:
    """The fields of resctrl's line in a table of mounts: source, place, type, options."""
    lines = (line.split() for line in (_text(files.proc, table) or "").splitlines())
    return next((words for words in lines if len(words) > 3 and words[2] == "resctrl"), None)


def _closids(tree: Tree, names: tuple[str, ...]) -> int | None:
    """The least over all resources that say how many they have."""
    counts = [_number(tree, f"info/{name}/num_closids") for name in names if not name.endswith("_MON")]
    return min((count for count in counts if count is not None), default=None)


def _number(tree: Tree, path: str) -> int | None:
    try:
        number = tree.read_int(path)
    except OSError:
        return None
    return number if 0 <= number <= ENDLESS_MIB else None


def _text(tree: Tree, path: str) -> str | None:
    try:
        return tree.read_text(path).strip("\n")
    except OSError:
        return None

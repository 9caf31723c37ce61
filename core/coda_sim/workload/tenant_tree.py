"""A tree of virtual clusters for a workload: read from a file, or made up of what its jobs say."""

from __future__ import annotations

import csv
import hashlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from coda.errors import InvalidInput
from coda.model.world import VirtualCluster
from coda.tenants import TenantTree
from coda.wording import counted
from coda_sim.workload.gangs import Gang
from coda_sim.workload.virtual_clusters import virtual_clusters

SHARES: Final = "shares"
"""The argument for a tree that is made up: no public trace records quotas."""

_TEAMS: Final = 12  # of users, where the trace names fewer than two virtual clusters
_ORGS: Final = 3
_COLUMNS: Final = ("name", "parent", "gpus", "cpus", "weight", "mayBorrow")
_MOST: Final = 10_000_000
_NAMED: Final = 5  # virtual clusters that a sentence names


def tenants_of(argument: str, gangs: Sequence[Gang], gpus: int) -> tuple[tuple[VirtualCluster, ...], Sequence[Gang]]:
    """Return the virtual clusters, and the jobs, each with the name of its own.

    Raises InvalidInput for a file that is bad, or in whose virtual clusters there is no job.

    `shares`: the trace's virtual clusters, or `_TEAMS` groups of its users, are the teams of three organisations. Each
    team owns its part of all `gpus` by what its jobs use in the whole trace. Who is in which group and organisation
    follows from the names alone. Our choice."""
    if not argument:
        return (), gangs
    if argument != SHARES:
        tenants = _read(Path(argument))
        _check_names(argument, tenants, gangs)
        return tenants, gangs
    names = {gang.row.virtual_cluster for gang in gangs if gang.row.virtual_cluster}
    if len(names) < 2:
        gangs = [_with_team(gang) for gang in gangs]
    teams = virtual_clusters(gangs, gpus)
    org_by_team = {team.name: f"org-{number % _ORGS + 1}" for number, team in enumerate(_largest_first(teams))}
    orgs = [VirtualCluster(name=name) for name in sorted(set(org_by_team.values()))]
    return (*orgs, *(replace(team, parent=org_by_team[team.name]) for team in teams)), gangs


def strangers_of(argument: str, gangs: Sequence[Gang]) -> tuple[str, ...]:
    """Return a sentence for the virtual clusters of a file that have no job, and one for the jobs that are in none.

    Those that are above others need no job. Raises InvalidInput as `tenants_of` does. O(jobs)."""
    if argument in ("", SHARES):
        return ()
    tenants, _ = tenants_of(argument, gangs, gpus=0)
    ours, theirs = {one.name for one in tenants}, {gang.row.virtual_cluster for gang in gangs}
    idle = ours - {one.parent for one in tenants} - theirs
    outside = [name for name in (gang.row.virtual_cluster for gang in gangs) if name not in ours]
    found = []
    if idle:
        found.append(f"--tenants {argument}: {counted(len(idle), 'virtual cluster')} without a job: {_few(idle)}")
    if outside:
        whose = f" ({_few(outside)})" if any(outside) else ""
        found.append(f"--tenants {argument}: {counted(len(outside), 'job')} in none of its virtual clusters{whose}")
    return tuple(found)


def _check_names(argument: str, tenants: Sequence[VirtualCluster], gangs: Sequence[Gang]) -> None:
    ours, theirs = {one.name for one in tenants}, {gang.row.virtual_cluster for gang in gangs} - {""}
    if not theirs:
        raise InvalidInput(
            f"--tenants {argument}: no job of the workload names a virtual cluster; {SHARES} makes some up"
        )
    if not ours & theirs:
        raise InvalidInput(
            f"--tenants {argument}: no job is in its virtual clusters ({_few(ours) or 'none'}): "
            f"name those of the workload ({_few(theirs)})"
        )


def _few(names: Collection[str]) -> str:
    shown = sorted(set(names) - {""})
    return ", ".join(shown[:_NAMED]) + (", ..." if len(shown) > _NAMED else "")


def _largest_first(teams: Sequence[VirtualCluster]) -> list[VirtualCluster]:
    return sorted(teams, key=lambda team: (-(team.gpus or 0), team.name))


def _with_team(gang: Gang) -> Gang:
    digest = hashlib.blake2b(gang.row.user.encode(), digest_size=8).digest()
    team = f"team-{int.from_bytes(digest, 'big') % _TEAMS + 1:02}"
    return replace(gang, row=replace(gang.row, virtual_cluster=team))


def _read(path: Path) -> tuple[VirtualCluster, ...]:
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file)
            unknown = [name for name in reader.fieldnames or () if name not in _COLUMNS]
            if unknown or "name" not in (reader.fieldnames or ()):
                raise InvalidInput(f"--tenants {path}: the columns are {', '.join(_COLUMNS)}; only name is needed")
            lined = [(reader.line_num, _tenant(path, reader.line_num, row)) for row in reader]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InvalidInput(f"--tenants {path}: cannot be read: {error}") from error
    found = [one for _, one in lined]
    twice = sorted({one.name for one in found if sum(other.name == one.name for other in found) > 1})
    if twice:
        raise InvalidInput(f"--tenants {path}: {twice[0]} is named twice")
    tenants = TenantTree(found)
    for line, one in lined:
        if (broken := tenants.detached(one.name)) is not None:  # a cluster mends this by lifting the parent's limits
            why = broken[1].partition(": ")[2]
            raise InvalidInput(f"--tenants {path}:{line}: {one.name}: {why}")
    return tuple(found)


def _tenant(path: Path, line: int, row: Mapping[str | None, str | None]) -> VirtualCluster:
    def number(column: str, least: int) -> int | None:
        text = (row.get(column) or "").strip()
        if not text:
            return None
        if not text.isascii() or not text.isdigit() or not least <= int(text[:20]) <= _MOST:
            raise InvalidInput(
                f"--tenants {path}:{line}: {column} must be a whole number from {least}, not {text[:40]!r}"
            )
        return int(text)

    name, borrows = (row.get("name") or "").strip(), (row.get("mayBorrow") or "").strip().lower()
    if not name or "/" in name or None in row:
        raise InvalidInput(
            f"--tenants {path}:{line}: a row needs a name without a slash, and no more columns than titles"
        )
    if borrows not in ("", "true", "false"):
        raise InvalidInput(f"--tenants {path}:{line}: mayBorrow must be true or false, not {borrows[:40]!r}")
    cores = number("cpus", 0)
    return VirtualCluster(
        name=name,
        parent=(row.get("parent") or "").strip(),
        gpus=number("gpus", 0),
        cpu_m=None if cores is None else cores * 1000,
        weight=float(number("weight", 1) or 1),
        may_borrow=borrows != "false",
    )

"""Which measurements the eliminator may act on: how old the list of pods may be, and where a pod works."""

from __future__ import annotations

from collections.abc import Collection, Mapping

STALE_S = 60.0
"""Seconds after which an old list of pods must not be acted on. Our choice: as `ContentionConfig.blind_s`."""

LEAST_TRAFFIC_SHARE = 0.05
"""A pod works on a socket if at least this share of its own traffic is there. Our choice."""


def bandwidth_shares(
    bytes_per_s: Mapping[int, float | None], peak_bytes_per_s: Mapping[int, float], *, pods_age_s: float
) -> dict[int, float | None]:
    """Return bandwidth over peak for every socket with a peak, in order of sockets; None: not measured.

    `pods_age_s`: seconds since the list of pods was certainly right. If it is stale, no share counts as measured: the
    eliminator then starts nothing new, and later lifts its throttles."""
    stale = pods_age_s > STALE_S
    rates = {socket: None if stale else bytes_per_s.get(socket) for socket in sorted(peak_bytes_per_s)}
    return {socket: None if rate is None else rate / peak_bytes_per_s[socket] for socket, rate in rates.items()}


def sockets_of(bytes_per_s: Mapping[int, float], sockets: Collection[int]) -> frozenset[int]:
    """Return the sockets that a pod works on, by its traffic; all `sockets` if it has none."""
    total = sum(bytes_per_s.values())
    if not total:
        return frozenset(sockets)
    return frozenset(socket for socket, rate in bytes_per_s.items() if rate >= LEAST_TRAFFIC_SHARE * total)

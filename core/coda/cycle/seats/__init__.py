"""Opportunistic jobs in a cycle: they get what all others leave, and are the first to stop. Nothing is written here.

All others are decided first, as if no opportunistic job were there (`sharers`). What they then lack on a node, the
opportunistic jobs there leave (`yielding`). The others that wait get seats on GPUs (`turns`, `seat_starts`; `board`
says beside whom they may), or a reason (`seat_reasons`). One that has no room on its GPU any more leaves it (`moves`).
One of class Auto may leave its seats for GPUs of its own (`upgrades`). Without a job that asks for seats or has one,
every decision is as if this package were not there, except that it says who may be joined (`joinable`). Read `beside`,
which does it in order."""

from coda.cycle.seats.beside import with_sharers
from coda.cycle.seats.joinable import with_joinable
from coda.cycle.seats.sharers import without_sharers
from coda.cycle.seats.upgrades import Upgrades

__all__ = ["Upgrades", "with_joinable", "with_sharers", "without_sharers"]

"""Opportunistic jobs in a cycle: they get what all others leave, and are the first to stop. Nothing is written here.

All others are decided first, as if no opportunistic job were there (`sharers`). What they then lack on a node, the
opportunistic jobs there leave (`yielding`). The others that wait get seats on GPUs (`board`, `seat_starts`), or a
reason (`seat_reasons`). Without a job that asks for seats or has one, every decision is as if this package were not
there. Read `beside`, which does all of this in order."""

from coda.cycle.seats.beside import with_sharers
from coda.cycle.seats.sharers import without_sharers

__all__ = ["with_sharers", "without_sharers"]

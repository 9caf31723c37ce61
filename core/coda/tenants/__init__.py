"""Tenants: a tree of virtual clusters, what each level of it holds, and who gives lent GPUs back to whom.

Nothing here searches nodes or writes anything. Read `tree` (who is a part of whom, and what is whose own), `ledger`
(what each level holds, and whose turn it is), then `fair_share` (whose gangs stop for an owner) and `memory`.
`trial_rules` says whose gangs are tried first.
"""

from __future__ import annotations

from coda.tenants.ledger import TenantLedger, TenantShortage
from coda.tenants.memory import FairShareMemory
from coda.tenants.tree import MAX_LEVELS, Detached, Seat, TenantTree

__all__ = ["MAX_LEVELS", "Detached", "FairShareMemory", "Seat", "TenantLedger", "TenantShortage", "TenantTree"]

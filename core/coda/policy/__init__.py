"""The rules that differ between policies, as pure functions.

Nothing here stores a job or searches nodes. Read `order` (who goes first), `fair_share`, `node_score`, `cores` (how
many cores a job starts with), `arrays` with `division`, and `preemption_rules`, then `policies`: the table of all
policies. `config` has what an installation may set.
"""

from __future__ import annotations

from coda.policy.config import ArraysConfig, Component, Level, PolicyConfig
from coda.policy.cores import CoresRule, starting_cores
from coda.policy.policies import DEFAULT, PLAIN, POLICIES, Policy, policy_of, why_not_live

__all__ = [
    "DEFAULT",
    "PLAIN",
    "POLICIES",
    "ArraysConfig",
    "Component",
    "CoresRule",
    "Level",
    "Policy",
    "PolicyConfig",
    "policy_of",
    "starting_cores",
    "why_not_live",
]

"""Why a job failed: from what its ranks printed and how they ended to one reason, with evidence and a retry decision.

The rules are data (`rules/*.toml`); nothing here reads a log itself, waits or knows Kubernetes. Read `reasons` (the
words), `patterns` (what a rule may look for, and why that takes linear time), `rules`, `log_lines` (one log as lines
with their ranks), then `classifier`. `xids` has what the GPU driver reports; `masking` takes secrets
out of what is shown.
"""

from __future__ import annotations

from coda.diagnosis.classifier import Diagnosis, End, RankLog, classify, conclude, examine
from coda.diagnosis.reasons import Reason, Retry
from coda.diagnosis.rules import RuleBook, built_in_rules, rules_from_toml

__all__ = [
    "Diagnosis",
    "End",
    "RankLog",
    "Reason",
    "Retry",
    "RuleBook",
    "built_in_rules",
    "classify",
    "conclude",
    "examine",
    "rules_from_toml",
]

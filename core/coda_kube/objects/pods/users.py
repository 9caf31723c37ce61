"""Whom a TrainingJob or a pod counts for, by the stamp of the API server (`deploy/manifests/users.yaml`)."""

from __future__ import annotations

from collections.abc import Mapping
from sys import intern
from typing import Any, Final

from coda_kube.objects.names import ANNOTATION_USER

LONGEST: Final = 256
"""Characters of a user's name that count; the stamp has no more. Our choice: addresses and certificates have fewer."""

_NO_PERSON: Final = "system:"


def user_from_json(metadata: Mapping[str, Any]) -> str:
    """Return the user of an object: who asked for it, else its namespace. O(1).

    Accounts of Kubernetes itself and service accounts are nobody here. Whoever edits a namespace may make any number of
    service accounts, and each would have a share of its own."""
    stamp = str((metadata.get("annotations") or {}).get(ANNOTATION_USER) or "")[:LONGEST]
    return str(metadata["namespace"]) if not stamp or stamp.startswith(_NO_PERSON) else intern(stamp)

"""Whom a job's failures count for: as in the shares of the cluster, but no namespace is taken for a person."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from coda_kube.objects.names import ANNOTATION_USER
from coda_kube.objects.pods.users import LONGEST, user_from_json

Item = Mapping[str, Any]
Owner = tuple[bool, str]
"""Whether it is a person, and the name: nobody's namespace is taken for a person of that name."""


def owner_from_json(metadata: Item) -> Owner:
    """Return whom a job's failures count for."""
    user = user_from_json(metadata)
    stamp = str((metadata.get("annotations") or {}).get(ANNOTATION_USER) or "")
    return stamp[:LONGEST] == user, user

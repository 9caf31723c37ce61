"""The GPU product of nodes: what NVIDIA's GPU feature discovery calls the model of their GPUs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from coda.model.world import Node

PRODUCT_LABEL: Final = "nvidia.com/gpu.product"


def products_of(nodes: Sequence[Node]) -> list[str] | None:
    """Return the product of each node; None if fewer than two are known: then there is nothing to tell apart.

    Nodes without the label count as one product."""
    products = [node.labels.get(PRODUCT_LABEL, "") for node in nodes]
    return products if len({*products} - {""}) > 1 else None

"""Which nodes satisfy a selector and node affinity: answered for all nodes at once, by the values of their labels.

To ask each node about each term takes nodes x terms: minutes for a user who names ten thousand. Here each requirement
is one set of nodes, as the bits of a number. Sets of thousands of nodes are joined in a fraction of a microsecond.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence

from coda.model.constraints import NodeConstraints, NodeTerm, Requirement
from coda.model.world import Node
from coda.nodes.eligibility import integer_of


class LabelIndex:
    """The nodes by label. It holds while their names and labels stay the same."""

    def __init__(self, nodes: Sequence[Node]) -> None:
        self._nodes = nodes
        self._all = (1 << len(nodes)) - 1
        self._bits_by_key: dict[str, dict[str, int]] = {}  # by value, of the labels asked for so far
        self._having_by_key: dict[str, int] = {}
        self._numbers_by_key: dict[str, tuple[list[int], list[int]]] = {}
        self._bit_by_name: dict[str, int] | None = None

    def selected(self, selector: Mapping[str, str]) -> int:
        """Return the nodes with all these labels, as bits. O(labels), and O(nodes) for a key that is new."""
        bits = self._all
        for key, value in selector.items():
            bits &= self._values(key).get(value, 0)
        return bits

    def in_terms(self, constraints: NodeConstraints) -> int:
        """Return the nodes that one of the terms allows, as bits; all without terms.

        O(values that are named), and O(nodes) for a label that is new."""
        if not constraints.terms:
            return self._all
        bits = 0
        for term in constraints.terms:
            bits |= self._in_term(term)
        return bits

    def _in_term(self, term: NodeTerm) -> int:
        if not term.labels and not term.fields:
            return 0  # an empty term selects nothing
        bits = self._all
        for requirement in term.labels:
            bits &= self._with_label(requirement)
        for requirement in term.fields:
            bits &= self._with_field(requirement)
        return bits

    def _with_label(self, requirement: Requirement) -> int:
        if requirement.operator == "In":
            return _joined(self._values(requirement.key), requirement.values)
        if requirement.operator == "NotIn":
            bits_by_value = self._values(requirement.key)
            return self._all & ~_joined(bits_by_value, requirement.values) if requirement.values else 0
        if requirement.operator in ("Exists", "DoesNotExist"):
            having = self._having(requirement.key)
            return 0 if requirement.values else having if requirement.operator == "Exists" else self._all & ~having
        limit = integer_of(requirement.values[0]) if len(requirement.values) == 1 else None
        if requirement.operator not in ("Gt", "Lt") or limit is None:
            return 0
        numbers, up_to = self._numbers(requirement.key)
        if requirement.operator == "Lt":
            return up_to[bisect_left(numbers, limit)]
        return up_to[-1] & ~up_to[bisect_right(numbers, limit)]

    def _with_field(self, requirement: Requirement) -> int:
        if requirement.key != "metadata.name" or len(requirement.values) != 1:
            return 0
        names = self._bit_by_name
        if names is None:
            names = self._bit_by_name = {node.name: 1 << number for number, node in enumerate(self._nodes)}
        bit = names.get(requirement.values[0], 0)
        if requirement.operator == "In":
            return bit
        return self._all & ~bit if requirement.operator == "NotIn" else 0

    def _having(self, key: str) -> int:
        """The nodes with any value of the label."""
        having = self._having_by_key.get(key)
        if having is None:
            having = self._having_by_key[key] = _joined(self._values(key), tuple(self._values(key)))
        return having

    def _numbers(self, key: str) -> tuple[list[int], list[int]]:
        """The label's values that are numbers, in order, and before each of them, and after all, the nodes so far."""
        found = self._numbers_by_key.get(key)
        if found is None:
            read = [(integer_of(value), bits) for value, bits in self._values(key).items()]
            ordered = sorted((number, bits) for number, bits in read if number is not None)
            up_to = [0]
            for _, bits in ordered:
                up_to.append(up_to[-1] | bits)
            found = self._numbers_by_key[key] = ([number for number, _ in ordered], up_to)
        return found

    def _values(self, key: str) -> dict[str, int]:
        bits_by_value = self._bits_by_key.get(key)
        if bits_by_value is None:
            numbers_by_value: dict[str, list[int]] = {}
            for number, node in enumerate(self._nodes):
                value = node.labels.get(key)
                if value is not None:
                    numbers_by_value.setdefault(value, []).append(number)
            bits_by_value = {value: _bits_of(numbers) for value, numbers in numbers_by_value.items()}
            self._bits_by_key[key] = bits_by_value
        return bits_by_value


def numbers_in(bits: int) -> list[int]:
    """Return the numbers of the nodes in these bits, in order. O(nodes)."""
    return [number for number, bit in enumerate(reversed(f"{bits:b}")) if bit == "1"] if bits else []


def count_of(bits: int) -> int:
    """Return how many nodes are in these bits."""
    return bits.bit_count()


def _bits_of(numbers: list[int]) -> int:
    """The bits of ascending numbers."""
    octets = bytearray(numbers[-1] // 8 + 1)
    for number in numbers:
        octets[number >> 3] |= 1 << (number & 7)
    return int.from_bytes(octets, "little")


def _joined(bits_by_value: Mapping[str, int], values: tuple[str, ...]) -> int:
    bits = 0
    for value in values:
        bits |= bits_by_value.get(value, 0)
    return bits

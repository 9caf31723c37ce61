"""Scores that choose the node of a gang of one rank, one per placement rival; the lowest score wins.

Scores that sum over resources count those the node has; each amount is divided by the node's size.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Final, NamedTuple

from coda.model.resources import Resources


class Typical(NamedTuple):
    """A typical rank of the workload. `weight`: how often it comes, relative to the others."""

    gpus: int
    cores: int
    weight: float


Mix = tuple[Typical, ...]
TYPICAL_MIX: Final[Mix] = (
    Typical(1, 2, 0.56),
    Typical(2, 4, 0.16),
    Typical(4, 8, 0.21),
    Typical(8, 16, 0.07),
)
"""GPU jobs of the month fitted to CODA's text; two cores per GPU. Our choice: the paper gives no mix of GPU counts."""

MIX_SHARE: Final = 0.95
"""Share of all ranks that a mix from a workload covers. Source: FGD's simulator, popularity of typical pods."""


def mix_of(ranks: Iterable[tuple[int, int]]) -> Mix:
    """Return the mix of a workload from GPUs and cores of each of its ranks, ranks without GPUs too.

    The commonest pairs that cover `MIX_SHARE` of the ranks; ties: fewest GPUs, then cores. O(ranks)."""
    counts = Counter(ranks)
    left = MIX_SHARE * counts.total()
    mix: list[Typical] = []
    for (gpus, cores), count in sorted(counts.items(), key=lambda entry: (-entry[1], entry[0])):
        if left <= 0:
            break
        mix.append(Typical(gpus, cores, float(count)))
        left -= count
    return tuple(mix)


Scorer = Callable[[Resources, Resources, Resources, Mix], tuple[float, ...]]
"""(request, free, size of the node, mix of the workload) -> key, lowest first."""


def fewest_gpus(request: Resources, free: Resources, size: Resources, mix: Mix) -> tuple[float, ...]:
    """Prefer the fewest free GPUs for GPU jobs, the most free cores for CPU jobs.

    Source: our choice, because CODA's text does not say; with it our FIFO figures agree with CODA's."""
    return (free.gpus,) if request.gpus else (-free.cpu_m,)


def least_in_the_way(request: Resources, free: Resources, size: Resources, mix: Mix) -> tuple[float, ...]:
    """Prefer the fewest free GPUs for GPU jobs. For CPU jobs: the node without free GPUs, then the fewest free cores.

    So wide CPU jobs find a node with many free cores, and GPU jobs find cores beside free GPUs: on other nodes, a CPU
    job that borrows is stopped for one only once GPUs end there. Source: our choice (docs/decisions/0053)."""
    return (free.gpus,) if request.gpus else (free.gpus > 0, free.cpu_m)


def best_fit(request: Resources, free: Resources, size: Resources, mix: Mix) -> tuple[float, ...]:
    """Prefer the least left over: the sum over resources of (free - asked) / size."""
    return (sum((have - asked) / whole for asked, have, whole in _amounts(request, free, size)),)


def dot_product(request: Resources, free: Resources, size: Resources, mix: Mix) -> tuple[float, ...]:
    """Prefer the most alike in direction: the sum over resources of asked/size * free/size, largest first.

    Source: Tetris (Grandl et al., SIGCOMM 2014), alignment score."""
    return (-sum(asked / whole * have / whole for asked, have, whole in _amounts(request, free, size)),)


def spread_and_balanced(request: Resources, free: Resources, size: Resources, mix: Mix) -> tuple[float, ...]:
    """Prefer the most cores and memory left free, and the most alike shares of both, as kube-scheduler adds them up.

    kube-scheduler draws among equal nodes. Here a hash of what is free decides, always the same (our choice).
    Source: Kubernetes 1.36.3, NodeResourcesFit with LeastAllocated and NodeResourcesBalancedAllocation, cpu and memory,
    weight 1 each."""
    score = least_allocated(request, free, size) + balanced_allocation(request, free, size)
    return (-score, _drawn(free))


def least_allocated(request: Resources, free: Resources, size: Resources) -> int:
    """Return the cores and memory left free in whole hundredths of the node, averaged; 0 to 100."""
    pairs = ((free.cpu_m - request.cpu_m, size.cpu_m), (free.memory_bytes - request.memory_bytes, size.memory_bytes))
    scores = [max(0, left) * 100 // whole for left, whole in pairs if whole]
    return sum(scores) // len(scores) if scores else 0


def balanced_allocation(request: Resources, free: Resources, size: Resources) -> int:
    """Return how much closer the used shares of cores and memory come by the start; 50 to 100, 75 for no change."""
    return 50 + (50 + _balance(free - request, size) - _balance(free, size)) // 2


def _balance(free: Resources, size: Resources) -> int:
    """100 where the used shares of cores and memory are equal, or one of both is not limited; else down to 50."""
    if not size.cpu_m or not size.memory_bytes:
        return 100
    cores = min(1.0, (size.cpu_m - free.cpu_m) / size.cpu_m)
    memory = min(1.0, (size.memory_bytes - free.memory_bytes) / size.memory_bytes)
    return int((1 - abs(cores - memory) / 2) * 100)


def _drawn(free: Resources) -> float:
    """A number that looks drawn, 0..1, the same for the same amount. Source: Knuth's multiplicative hash."""
    return (free.gpus * 40_503 + free.cpu_m * 2_654_435_761 + free.memory_bytes // 2**20 * 97) % 4_294_967_291 / 2**32


def least_fragmenting(request: Resources, free: Resources, size: Resources, mix: Mix) -> tuple[float, ...]:
    """Prefer the smallest growth of the GPUs that a job of the workload's mix cannot use.

    Source: FGD (Weng et al., ATC 2023), fragmentation gradient descent, for whole GPUs."""
    return (fragmented_gpus(free - request, mix) - fragmented_gpus(free, mix),)


def fragmented_gpus(free: Resources, mix: Mix) -> float:
    """Return how many of a node's free GPUs a job drawn from the mix cannot use, on average.

    All of them if it does not fit: too few GPUs or cores are left, or it asks for no GPU. Source: FGD, section 3."""
    total = sum(typical.weight for typical in mix)
    unusable = sum(
        typical.weight
        for typical in mix
        if not typical.gpus or typical.gpus > free.gpus or typical.cores * 1000 > free.cpu_m
    )
    return max(0, free.gpus) * unusable / total if total else 0.0


def _amounts(request: Resources, free: Resources, size: Resources) -> Iterator[tuple[int, int, int]]:
    """Yield asked, free and total of cores, memory and GPUs, for the resources that the node has."""
    if size.cpu_m:
        yield request.cpu_m, free.cpu_m, size.cpu_m
    if size.memory_bytes:
        yield request.memory_bytes, free.memory_bytes, size.memory_bytes
    if size.gpus:
        yield request.gpus, free.gpus, size.gpus

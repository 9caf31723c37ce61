"""Which nodes can hold a gang. Nothing here knows the queue, written placements or what other jobs wait for.

Read `eligibility`, `label_index` and `free_capacity` first: which nodes accept a pod, and what is free on them. Then
`node_groups`, `candidates` and `node_search`: nodes that are alike, the best of them, and the search that gangs share.
`locality` and `preferred_levels` say which gangs wait for nodes that are close together, `bottleneck` which resource is
in the way, `shortfall` how that is said. `array_use` adds up what the arrays hold.
"""

from coda.nodes.bottleneck import Bottlenecks
from coda.nodes.candidates import Candidates, Score
from coda.nodes.eligibility import Exclusion, accepts, exclusion, is_blocked, tolerates
from coda.nodes.free_capacity import FreeCapacity
from coda.nodes.node_search import EligibleNodes, NodeSearch, RankClass

__all__ = [
    "Bottlenecks",
    "Candidates",
    "EligibleNodes",
    "Exclusion",
    "FreeCapacity",
    "NodeSearch",
    "RankClass",
    "Score",
    "accepts",
    "exclusion",
    "is_blocked",
    "tolerates",
]

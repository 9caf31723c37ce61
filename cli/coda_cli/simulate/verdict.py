"""The comparison in words: a policy against the best of the others, for what a platform team asks first."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from coda.policy import DEFAULT
from coda_cli.simulate.comparison import Comparison, cell
from coda_sim.results.measure_names import MEASURE_BY_KEY, Unit
from coda_sim.results.summary import Interval

ASKED: Final[Mapping[str, bool]] = {
    "gpu_wait_mean_s": False,
    "gpu_jct_mean_s": False,
    "gpu_util_all": True,
    "cpu_started_3min": True,
    "user_wait_p99_worst_s": False,
}
"""The measures that are put into words, and whether more is better."""

BOUNDS: Final = frozenset({"sjf", "srtf", "synergy-tune-oracle"})
"""They know what no cluster knows: run times, or the best cores. They are no rivals (docs/results.md)."""

SAME: Final = 0.03  # relative; the rule of docs/results.md


def judged(comparison: Comparison) -> str:
    """Return the title that is compared with the others: the default policy, else the first."""
    return DEFAULT if DEFAULT in comparison.titles else comparison.titles[0]


def verdict(comparison: Comparison) -> Iterator[str]:
    """Yield a sentence for each measure that was asked for; none for one that nobody has."""
    ours = judged(comparison)
    own = comparison.intervals[comparison.titles.index(ours)]
    rivals = {
        title: intervals
        for title, intervals in zip(comparison.titles, comparison.intervals, strict=True)
        if title != ours and title.split()[0] not in BOUNDS and title.split()[0] != ours
    }
    for key, more_is_better in ASKED.items():
        mine = own[key]
        if mine is None:
            continue
        begin = f"Under {ours}, {MEASURE_BY_KEY[key].name}: {cell(MEASURE_BY_KEY[key], mine)}"
        known = {title: interval for title, found in rivals.items() if (interval := found[key]) is not None}
        if not known:
            yield f"{begin}."
            continue
        best = (max if more_is_better else min)(known, key=lambda title: (known[title].mean, title))
        yield f"{begin}. {_against(key, mine, best, known[best], more_is_better=more_is_better)}"


def _against(key: str, mine: Interval, name: str, best: Interval, *, more_is_better: bool) -> str:
    """The best of the others, and how far it is."""
    measure = MEASURE_BY_KEY[key]
    text = f"The best of the others is {name}: {cell(measure, best)}"
    gap = mine.mean - best.mean
    chance = sum(one.high - one.mean for one in (mine, best) if one.high is not None)
    if abs(gap) <= max(chance, SAME * abs(best.mean)):
        return f"{text}, which is about the same."
    is_better = (gap > 0) == more_is_better
    word = "better" if is_better else "worse"
    if measure.unit is Unit.SHARE:
        return f"{text}, so this is {word} by {abs(100 * gap):.1f} percentage points."
    if not best.mean:
        return f"{text}, so this is {word}."
    ratio = mine.mean / best.mean
    if ratio < 0.01:
        return f"{text}, so this is {word}: less than a hundredth of it."
    amount = (
        f"{ratio:.1f} times as much" if ratio >= 2 else f"{100 * abs(1 - ratio):.0f} % {'more' if gap > 0 else 'less'}"
    )
    return f"{text}, so this is {word}: {amount}."

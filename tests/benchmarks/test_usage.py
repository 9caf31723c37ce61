import os

from rig.usage import Usage, cpu_s_between, usage_of


def used(cpu_s: float) -> Usage:
    return Usage(cpu_s=cpu_s, rss_bytes=0)


def test_reads_what_this_process_uses() -> None:
    before = usage_of()
    spent = os.times()
    while sum(os.times()[:2]) - sum(spent[:2]) < 0.05:
        pass  # burns CPU time: what is measured
    after = usage_of(os.getpid())
    assert after.cpu_s - before.cpu_s >= 0.03
    assert 1 << 20 < after.pss_bytes <= after.rss_bytes < 1 << 34


def test_lists_cpu_time_by_process_the_most_first() -> None:
    before = {"api": used(10.0), "etcd": used(1.0)}
    after = {"etcd": used(1.5), "api": used(12.0), "operator": used(0.5)}
    assert list(cpu_s_between(before, after).items()) == [("api", 2.0), ("etcd", 0.5), ("operator", 0.5)]

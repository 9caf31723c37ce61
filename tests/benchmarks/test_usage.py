import os
import subprocess
import sys

from rig.usage import Usage, bytes_alone, cpu_s_between, usage_of


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


def test_pages_that_several_processes_share_count_once() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", "print(1, flush=True); input()"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        assert other.stdin
        assert other.stdout
        other.stdout.readline()
        both, own, its = (bytes_alone(pids) for pids in ([os.getpid(), other.pid], [os.getpid()], [other.pid]))
        rss_bytes = usage_of(other.pid).rss_bytes
        other.stdin.close()
    assert max(own, its) < both < own + its
    assert 0.9 * rss_bytes <= its <= 1.1 * rss_bytes


def test_lists_cpu_time_by_process_the_most_first() -> None:
    before = {"api": used(10.0), "etcd": used(1.0)}
    after = {"etcd": used(1.5), "api": used(12.0), "operator": used(0.5)}
    assert list(cpu_s_between(before, after).items()) == [("api", 2.0), ("etcd", 0.5), ("operator", 0.5)]

"""Which processes speak to the coordinator, and that none of them needs it."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest

from tests.framework.boss import Boss, Message
from tests.framework.shared_node import SCRIPTS, SharedNode
from tests.framework.torch_race import once_more_after_the_race
from tests.lengths import LONG


@pytest.mark.skipif(not LONG, reason="five processes import torch: make verify")
def test_workers_of_a_data_loader_are_not_the_job(node: SharedNode) -> None:
    with Boss(node.socket) as boss:
        job = node.start("workers.py", pod="o")
        connected: set[int] = set()
        while job.process.poll() is None:
            boss.hear(0.2)
            connected.update(map(id, boss.connections))
        assert job.result() == 128
    assert [said["type"] for said in boss.heard].count("hello") == 1


@once_more_after_the_race
def test_each_rank_of_ddp_speaks_for_itself(node: SharedNode) -> None:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    with Boss(node.socket) as boss:
        process = subprocess.Popen(
            [*command, str(SCRIPTS / "ddp.py"), "4"],
            env=node.environment("o"),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        while process.poll() is None:
            boss.hear(0.2)
            if len(boss.connections) == 2:
                boss.order(share=700, device=None, hold_s=1)
        said, errors = process.communicate()
        assert process.returncode == 0, errors
        assert int(said.splitlines()[-1]) > 3
    hellos = [message for message in boss.heard if message["type"] == "hello"]
    assert sorted(message["local"] for message in hellos) == ["0", "1"]
    used = {gpu["gpu"] for message in boss.heard if message["type"] == "steps" for gpu in message["gpus"]}
    assert len(used) == 2


@pytest.mark.parametrize("options", [(), ("-I",)] if LONG else [("-I",)])
def test_without_a_coordinator_scripts_run(node: SharedNode, options: tuple[str, ...]) -> None:
    """Isolated, Python also ignores the path to torch; so the script's own line adds it."""
    words = ("-c", f"import sys; sys.path.insert(0, {str(node.rig.site)!r}); sys.argv = ['train.py', '1', '2', '0']\n")
    command = [sys.executable, *options, words[0], words[1] + (SCRIPTS / "train.py").read_text()]
    ended = subprocess.run(command, env=node.environment("o"), capture_output=True, text=True, check=False, timeout=120)
    assert ended.returncode == 0, ended.stderr
    assert ended.stderr == ""


def test_a_suspended_job_goes_on_once_the_coordinator_is_dead(node: SharedNode) -> None:
    """At the floor, and without an end of its own: the next coordinator takes it over."""
    with Boss(node.socket) as boss:
        job = node.start("train.py", 600, 5, 0, pod="o")
        boss.until(lambda said: said["type"] == "steps" and said["count"] > 5)
        boss.order(share=0, hold_s=2)
        while [said for said in boss.hear(1.0) if said["type"] == "steps"]:
            pass  # reports that were on their way
        stopped = max(said.get("count", 0) for said in boss.heard)
        boss.close()
    time.sleep(2.5)  # what is waited for is a time: the hold
    with Boss(node.socket) as boss:
        assert boss.until(lambda said: said["type"] == "hello")["control"] == "full"
        assert boss.until(lambda said: said["type"] == "steps")["count"] > stopped
        boss.order(share=1000, alone=True)
        first = boss.until(lambda said: said["type"] == "steps")["count"]
        assert boss.until(lambda said: said["type"] == "steps" and said["count"] > first + 20)
    assert job.process.poll() is None


def test_a_job_at_full_speed_slows_down_once_the_coordinator_is_dead(node: SharedNode) -> None:
    """Its neighbour had left the GPU idle. Nobody sees any more when it comes back."""
    with Boss(node.socket) as boss:
        node.start("train.py", 600, 5, 0, pod="o")
        boss.until(lambda said: said["type"] == "steps" and said["count"] > 5)
        boss.order(share=1000, hold_s=2)
        assert idle_ms(boss.until(lambda said: said["type"] == "steps" and said["count"] > 100)) == 0
        boss.close()
    time.sleep(3)  # what is waited for is a time: the hold
    with Boss(node.socket) as boss:
        assert idle_ms(boss.until(lambda said: said["type"] == "steps" and idle_ms(said) > 0)) > 0
        boss.order(share=1000, hold_s=60)
        first = boss.until(lambda said: said["type"] == "steps")["count"]
        assert boss.until(lambda said: said["type"] == "steps" and said["count"] > first + 100)


def test_without_a_coordinator_a_job_gives_way_to_whoever_comes(node: SharedNode) -> None:
    """Alone on its GPU it was told to go on for ever. A job of another pod comes while nobody is there to say so."""
    with Boss(node.socket) as boss:
        job = node.start("train.py", 600, 5, 0, pod="o")
        boss.until(lambda said: said["type"] == "steps" and said["count"] > 5)
        boss.order(share=1000, alone=True, hold_s=60)
        assert idle_ms(boss.until(lambda said: said["type"] == "steps" and said["count"] > 100)) == 0
        boss.close()
    node.start("memory.py", 600)
    assert "somebody else uses the GPU" in job.process.stderr.readline()  # type: ignore[union-attr]
    with Boss(node.socket) as boss:
        assert idle_ms(boss.until(lambda said: said["type"] == "steps")) > 0
        boss.order(share=1000, hold_s=60)
        first = boss.until(lambda said: said["type"] == "steps")
        paused_ms = idle_ms(boss.until(lambda said: said["type"] == "steps" and said["count"] > first["count"] + 20))
        assert paused_ms == idle_ms(boss.until(lambda said: said["type"] == "steps"))
    assert job.process.poll() is None


def test_one_who_owns_its_gpu_gives_way_to_nobody(node: SharedNode) -> None:
    with Boss(node.socket) as boss:
        job = node.start("train.py", 8, 5, 0, pod="g")
        boss.until(lambda said: said["type"] == "steps" and said["count"] > 5)
        boss.order(share=1000, alone=True, hold_s=0)
        boss.close()
    neighbour = node.start("memory.py", 4)
    neighbour.result()
    _, errors = job.process.communicate(timeout=60)
    assert (job.process.returncode, errors) == (0, "")


def test_a_job_on_a_seat_begins_at_the_floor(node: SharedNode) -> None:
    with Boss(node.socket) as boss:
        node.start("train.py", 600, 5, 0, pod="o", CODA_SHARE="50")
        said = boss.until(lambda said: said["type"] == "steps" and idle_ms(said) > 0)
        assert idle_ms(said) > 5 * sum(gpu["busy_ns"] for gpu in said["gpus"]) / 1e6
        boss.order(share=1000, hold_s=60)
        first = boss.until(lambda said: said["type"] == "steps")["count"]
        assert boss.until(lambda said: said["type"] == "steps" and said["count"] > first + 100)


def idle_ms(message: Message) -> float:
    """For how long it has paused."""
    return float(sum(gpu["idle_ns"] for gpu in message["gpus"])) / 1e6

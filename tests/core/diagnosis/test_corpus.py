"""Programs that failed for real (`programs.toml`), and the same logs as launchers and platforms pass them on."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

from coda.diagnosis import End, RankLog, classify

pytestmark = pytest.mark.heavy

HERE = Path(__file__).parent
PROGRAMS = tomllib.loads((HERE / "programs.toml").read_text())


def log_of(name: str) -> tuple[int, str]:
    code, _, log = (HERE / "corpus" / f"{name}.log").read_text().partition("\n")
    return int(code), log


@pytest.mark.parametrize("name", sorted(PROGRAMS))
def test_a_program_that_failed_is_given_its_reason(name: str) -> None:
    code, log = log_of(name)
    found = classify([RankLog(log=log.encode(), rank=0)], [End(exit_code=code, rank=0)])
    assert found.reason.value == PROGRAMS[name]["reason"], (found.rule, found.evidence)


def test_the_corpus_has_many_programs_and_most_reasons() -> None:
    assert len(PROGRAMS) >= 220
    assert len({program["reason"] for program in PROGRAMS.values()}) >= 18


def stamped(line: str) -> str:
    return f"2026-01-02T03:04:05.678901234Z {line}"


def prefixed(before: str) -> Callable[[str], str]:
    return lambda log: "\n".join(before + line for line in log.split("\n"))


WAYS: dict[str, Callable[[str], str]] = {
    "torchrun, rank": prefixed("[rank3]:"),
    "torchrun, local rank": prefixed("[default7]:"),
    "srun": prefixed("12: "),
    "mpirun": prefixed("[1,5]<stderr>:"),
    "ray": prefixed("(RayTrainWorker pid=881, ip=10.0.0.7) "),
    "kubectl": prefixed("[pod/train-1-3/main] "),
    "stern": prefixed("train-1-3 main "),
    "compose": prefixed("worker_2  | "),
    "kubelet's time stamps": lambda log: "\n".join(stamped(line) for line in log.split("\n")),
    "time stamps and ranks": lambda log: "\n".join(stamped(f"[rank2]: {line}") for line in log.split("\n")),
    "CRLF": lambda log: log.replace("\n", "\r\n"),
    "colours": lambda log: "\n".join(f"\x1b[31;1m{line}\x1b[0m" for line in log.split("\n")),
    "JSON": lambda log: "\n".join(json.dumps({"log": f"{line}\n", "stream": "stderr"}) for line in log.split("\n")),
    "a progress bar": lambda log: (
        "".join(f"\r {i}%|###   | {i}/100 [00:01<00:09, 3.1it/s]" for i in range(90)) + "\n" + log
    ),
    "after much progress": lambda log: "".join(f"epoch {i} loss 0.{i} lr 0.01\n" for i in range(1_000)) + log,
    "UTF-16": lambda log: "\0".join(log),
}


@pytest.mark.parametrize("way", list(WAYS))
def test_a_log_has_the_same_reason_however_it_is_passed_on(way: str) -> None:
    wrong = []
    for name, program in PROGRAMS.items():
        code, log = log_of(name)
        found = classify([RankLog(log=WAYS[way](log).encode())], [End(exit_code=code)])
        if found.reason.value != program["reason"]:
            wrong.append((name, found.reason.value, found.rule, found.evidence[:80]))
    assert len(wrong) <= len(PROGRAMS) * 0.02, wrong


def test_of_many_ranks_the_root_is_found_by_its_time() -> None:
    """Rank 5 fails first; the logs of its peers end later, and are read earlier."""
    peer = "[E ProcessGroupNCCL.cpp:5] [Rank 0] Watchdog caught collective operation timeout\n"
    late = 'Traceback (most recent call last):\n  File "t.py", line 9, in step\n    dist.barrier()\nKeyError: 1\n'
    root = 'Traceback (most recent call last):\n  File "t.py", line 3, in step\n    x @ y\n'
    root += "RuntimeError: mat1 and mat2 shapes cannot be multiplied (3x4 and 3x4)\n"
    logs = [
        RankLog(rank=0, log=prefixed("2026-01-01T00:30:09.0Z ")(peer).encode()),
        RankLog(rank=3, log=prefixed("2026-01-01T00:20:05.0Z ")(late).encode()),
        RankLog(rank=5, log=prefixed("2026-01-01T00:20:04.9Z ")(root).encode()),
    ]
    found = classify(logs)
    assert (found.reason.value, found.rank, found.evidence[:24]) == ("Semantic error", 5, "RuntimeError: mat1 and m")


def test_interleaved_ranks_are_kept_apart() -> None:
    ranks = [f"[rank{rank}]: " for rank in (0, 1)]
    killed = "RuntimeError: [../gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.1]:8"
    first = ["Traceback (most recent call last):", '  File "a.py", line 1, in f', "    all_reduce(x)", killed]
    second = [
        "Traceback (most recent call last):",
        '  File "b.py", line 2, in g',
        "    open(path)",
        "FileNotFoundError: [Errno 2] No such file or directory: 'x.bin'",
    ]
    log = "\n".join(f"{ranks[0]}{a}\n{ranks[1]}{b}" for a, b in zip(first, second, strict=True))
    found = classify([RankLog(log=log.encode())])
    assert (found.reason.value, found.rank) == ("Incorrect inputs", 1)

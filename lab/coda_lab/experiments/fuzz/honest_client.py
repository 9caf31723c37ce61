"""A scheduler among hostile clients: asks as kube-scheduler does, one call at a time, and checks each answer.

`python -m coda_lab.experiments.fuzz.honest_client PORT TLS_FOLDER NODE...` runs in a process of its own, so that its
times are the extender's and not the hostile clients'. It ends with its input, and then prints its findings as one line
of JSON.
"""

from __future__ import annotations

import http.client
import json
import select
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from coda_lab.host.client_tls import client_context
from coda_lab.host.ports import LOOPBACK

_PAUSE_S = 0.005
_TIMEOUT_S = 5.0  # kube-scheduler would have given up after one; slower answers are shown, not hidden


def main(words: Sequence[str] | None = None) -> int:
    """Ask until the input ends."""
    port, tls, *names = sys.argv[1:] if words is None else words
    asker = Asker(int(port), Path(tls), names)
    while not select.select([sys.stdin], [], [], _PAUSE_S)[0]:
        asker.ask("/filter")
        asker.ask("/prioritize")
    print(json.dumps(asker.seen()))  # noqa: T201 - its output
    return 0


class Asker:
    """One kept connection. All later answers of a verb must equal its first one."""

    def __init__(self, port: int, tls: Path, names: list[str]) -> None:
        spec = {"containers": [{"name": "main", "resources": {"requests": {"cpu": "1"}}}]}
        pod = {"metadata": {"name": "honest", "namespace": "default", "uid": "honest"}, "spec": spec}
        self._body = json.dumps({"Pod": pod, "Nodes": None, "NodeNames": names}).encode()
        self._connection = http.client.HTTPSConnection(LOOPBACK, port, timeout=_TIMEOUT_S, context=client_context(tls))
        self._right_by_verb: dict[str, bytes] = {}
        self._took_s: list[float] = []
        self._wrong: list[str] = []
        self._expected_names = names

    def ask(self, verb: str) -> None:
        """One call."""
        began_s = time.perf_counter()
        try:
            self._connection.request("POST", verb, self._body)
            response = self._connection.getresponse()
            status, answer = response.status, response.read()
        except (OSError, http.client.HTTPException) as error:
            self._connection.close()
            self._wrong.append(f"{verb}: {type(error).__name__}: {error}")
            return
        self._took_s.append(time.perf_counter() - began_s)
        if status != 200 or not self._is_right(verb, answer):
            self._wrong.append(f"{verb}: {status} {answer[:200]!r}")

    def _is_right(self, verb: str, answer: bytes) -> bool:
        if verb not in self._right_by_verb:
            said = json.loads(answer)
            if verb == "/filter" and said["NodeNames"] != self._expected_names:
                return False
            if verb == "/prioritize" and not {entry["Host"] for entry in said} <= set(self._expected_names):
                return False  # the worst nodes are left out, perhaps all
            self._right_by_verb[verb] = answer
        return answer == self._right_by_verb[verb]

    def seen(self) -> dict[str, object]:
        """The number of calls, their times, and the calls with a wrong answer (the first ten)."""
        times = sorted(self._took_s) or [0.0]
        return {
            "calls": len(self._took_s) + sum(1 for each in self._wrong if "Error" in each),
            "wrong": len(self._wrong),
            "wrong_first": self._wrong[:10],
            **{f"p{share}_ms": round(1000 * times[int(len(times) * share / 100)], 2) for share in (50, 90, 99)},
            "slowest_ms": round(1000 * times[-1], 2),
        }


if __name__ == "__main__":
    sys.exit(main())

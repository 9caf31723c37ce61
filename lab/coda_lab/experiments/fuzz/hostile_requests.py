"""The bytes: every kind of malformed request, made from a seed. Pure: nothing here talks.

A request that still reads as a pod has one of a few uids and asks for next to nothing, so the guard's in-flight pods
stay as under a real scheduler.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

LIMIT_BYTES = 3 * 1024 * 1024
"""The extender's default limit of a body."""

_VERBS = ("/filter", "/prioritize", "/preempt")
_ODD: tuple[Any, ...] = (
    None,
    True,
    0,
    -1,
    2**63,
    1e300,
    "",
    "x",
    "\u0000",
    "9" * 400,
    [],
    [[]],
    {},
    {"": None},
    [None],
)
_PATHS = (
    "metadata", "metadata.name", "metadata.namespace", "metadata.uid", "metadata.labels", "metadata.annotations",
    "metadata.resourceVersion", "metadata.deletionTimestamp", "spec", "spec.nodeName", "spec.containers",
    "spec.containers.0", "spec.containers.0.name", "spec.containers.0.resources", "spec.initContainers",
    "spec.containers.0.resources.requests", "spec.containers.0.resources.requests.cpu", "spec.overhead",
    "spec.resources", "spec.affinity", "spec.schedulingGates", "spec.schedulerName", "status", "status.conditions",
    "status.containerStatuses", "status.phase",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Hostile:
    """One thing to send. `answers` are awaited if the connection lasts; then it is closed unless `reusable`."""

    kind: str
    sent: bytes
    answers: int = 1
    reusable: bool = False


def pod_json(rng: random.Random) -> dict[str, Any]:
    """A foreign pod."""
    number = rng.randrange(50)
    return {
        "metadata": {"name": f"hostile-{number}", "namespace": "default", "uid": f"hostile-{number}", "labels": {}},
        "spec": {"containers": [{"name": "main", "resources": {"requests": {"cpu": "1m"}}}]},
        "status": {"phase": "Pending"},
    }


def question_json(rng: random.Random) -> dict[str, Any]:
    """A correct request."""
    question = {"Pod": pod_json(rng), "Nodes": None, "NodeNames": ["node-0", "node-1", "node-2"]}
    victims = {"node-0": {"Pods": [{"UID": f"hostile-{rng.randrange(50)}"}], "NumPDBViolations": 0}}
    return question | {"NodeNameToMetaVictims": victims}  # every verb reads its own part


def post(rng: random.Random, body: bytes, *headers: str, length: int | None = None, verb: str = "") -> bytes:
    """A POST with that body; `length` is announced instead of the true one."""
    lines = [f"POST {verb or rng.choice(_VERBS)} HTTP/1.1", "Host: extender", *headers]
    if not any(line.lower().startswith(("transfer-encoding", "content-length")) for line in headers):
        lines.append(f"Content-Length: {len(body) if length is None else length}")
    return "\r\n".join((*lines, "", "")).encode("latin-1") + body


def _whole(kind: str, rng: random.Random, body: bytes, *headers: str) -> Hostile:
    return Hostile(kind=kind, sent=post(rng, body, *headers), reusable=True)


def _question(rng: random.Random) -> bytes:
    return json.dumps(question_json(rng)).encode()


def truncated(rng: random.Random) -> Hostile:
    """JSON that ends too early."""
    body = _question(rng)
    return _whole("truncated", rng, body[: rng.randrange(len(body))])


def cut_off(rng: random.Random) -> Hostile:
    """A body announced longer than it is; then the client is gone."""
    body = _question(rng)
    return Hostile(kind="cut_off", sent=post(rng, body, length=len(body) + rng.randint(1, 10**6)), answers=0)


def deep(rng: random.Random) -> Hostile:
    """Deep nesting where the protocol has a value, a pod's field, or a Node object."""
    depth = rng.choice((100, 255, 300, 1000, 1024, 5000, 50_000))
    nest = b"[" * depth + b"]" * depth if rng.random() < 0.5 else b'{"a":' * depth + b"1" + b"}" * depth
    pod = json.dumps(pod_json(rng)).encode()
    shapes = (
        b'{"Pod":%b}' % nest,
        b'{"Pod":{"metadata":{"name":"a","namespace":"b","uid":"hostile-0","labels":%b},"spec":{}}}' % nest,
        b'{"Pod":%b,"NodeNames":%b}' % (pod, nest),
        b'{"Pod":%b,"Nodes":{"items":[{"metadata":{"name":"n"},"x":%b}]}}' % (pod, nest),
        nest,
    )
    return _whole("deep", rng, rng.choice(shapes))


def wrong_types(rng: random.Random) -> Hostile:
    """Another value somewhere in the pod, or instead of the names."""
    question = question_json(rng)
    if rng.random() < 0.2:
        question[rng.choice(("NodeNames", "Nodes", "Pod", "NodeNameToMetaVictims", "NodeNameToVictims"))] = rng.choice(
            _ODD
        )
        return _whole("wrong_types", rng, json.dumps(question).encode())
    *parents, last = rng.choice(_PATHS).split(".")
    inner: Any = question["Pod"]
    for parent in parents:
        inner = inner[int(parent) if isinstance(inner, list) else parent]
    inner[int(last) if isinstance(inner, list) else last] = rng.choice(_ODD)
    return _whole("wrong_types", rng, json.dumps(question).encode())


def huge_numbers(rng: random.Random) -> Hostile:
    """Numbers and quantities beyond every type."""
    number = rng.choice(
        (b"1e999", b"-1e308", b"9" * 300, b"9" * 5000, b'"1e999"', b'"9e-999"', b'"%b"' % (b"9" * 5000))
    )
    body = _question(rng).replace(b'"1m"', number)
    return _whole("huge_numbers", rng, body)


def duplicate_keys(rng: random.Random) -> Hostile:
    """The same key many times, with different values."""
    pod = json.dumps(pod_json(rng)).encode()
    values = (pod, b"null", b"[]", b"1", b'{"metadata":{}}')
    keys = b",".join(b'"Pod":%b' % rng.choice(values) for _ in range(rng.randint(2, 40)))
    return _whole("duplicate_keys", rng, b'{%b,"NodeNames":["a"],"NodeNames":["node-0"]}' % keys)


def bad_text(rng: random.Random) -> Hostile:
    """Invalid UTF-8, lone surrogates, bytes."""
    odd = rng.choice(
        (b"\xff\xfe", b"\xc0\x80", b"\xed\xa0\x80", b"\\ud800", b"\\udc00\\ud800", b"\x00", rng.randbytes(9))
    )
    return _whole("bad_text", rng, _question(rng).replace(b"hostile-", odd))


def noise(rng: random.Random) -> Hostile:
    """Bytes."""
    return _whole("noise", rng, rng.randbytes(rng.randint(0, 400)))


def wrong_content_type(rng: random.Random) -> Hostile:
    """A correct body with a wrong content type."""
    name = rng.choice(("text/html", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "", "\xff"))
    encoding = rng.choice(("gzip", "br", "deflate, gzip", "identity"))
    return _whole("wrong_content_type", rng, _question(rng), f"Content-Type: {name}", f"Content-Encoding: {encoding}")


def wrong_length(rng: random.Random) -> Hostile:
    """Content lengths that are no number, two, or wrong."""
    body = _question(rng)
    headers = rng.choice((
        ("Content-Length: -1",), ("Content-Length: many",), ("Content-Length: 1e3",), ("Content-Length: " + "9" * 400,),
        ("Content-Length: 5", "Content-Length: 6"), ("Content-Length: 5", "Transfer-Encoding: chunked"),
        ("Content-Length: +5",), ("Content-Length: 0x10",), (f"Content-Length: {len(body) - 9}",),
    ))  # fmt: skip
    return Hostile(kind="wrong_length", sent=post(rng, body, *headers))


def chunked(rng: random.Random) -> Hostile:
    """Chunks: tiny ones, with extensions, with trailers, with invalid sizes."""
    body = _question(rng)
    size = rng.choice((1, 7, 1000))
    parts = [body[start : start + size] for start in range(0, len(body), size)]
    note = rng.choice((b"", b";a=b", b";" + b"x" * 500))
    framed = b"".join(b"%x%b\r\n%b\r\n" % (len(part), note, part) for part in parts)
    ends = (
        b"0\r\n\r\n",
        b"0\r\n\r\n",
        b"0\r\nX-Late: 1\r\n\r\n",
        b"zz\r\n\r\n",
        b"-1\r\n\r\n",
        b"f" * 20 + b"\r\n\r\n",
    )
    return Hostile(kind="chunked", sent=post(rng, framed + rng.choice(ends), "Transfer-Encoding: chunked"))


def pipelined(rng: random.Random) -> Hostile:
    """Many requests before the first answer is read."""
    count = rng.choice((2, 5, 30, 200))
    sent = b"".join(post(rng, _question(rng) if rng.random() < 0.5 else b"{") for _ in range(count))
    return Hostile(kind="pipelined", sent=sent, answers=count)


def not_http(rng: random.Random) -> Hostile:
    """Another protocol, an endless head, a request for something else."""
    sent = rng.choice((
        rng.randbytes(200) + b"\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + rng.randbytes(100),
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"GET /" + b"a" * 300_000 + b" HTTP/1.1\r\n\r\n",
        b"POST /filter HTTP/1.1\r\n" + b"X-Long: aaaaaaaaaaaaaaaaaaaa\r\n" * 12_000 + b"\r\n",
        b"POST /filter HTTP/9.9\r\n\r\n", b"POST  HTTP/1.1\r\n\r\n", b"CONNECT filter:1 HTTP/1.1\r\n\r\n",
        b"POST /filter HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nContent-Length: 2\r\n\r\n{}",
        b"POST * HTTP/1.1\r\nHost: a\r\n\r\n", b"POST /f\xc3\xbc HTTP/1.1\r\nHost: a\r\n\r\n",
    ))  # fmt: skip
    return Hostile(kind="not_http", sent=sent + b"\r\n")


def blank_lines(_rng: random.Random) -> Hostile:
    """Blank lines instead of the start of a request."""
    return Hostile(kind="blank_lines", sent=b"\r\n" * 1000)


def elsewhere(rng: random.Random) -> Hostile:
    """Other methods and other paths."""
    method = rng.choice(("GET", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "HEADERS", "FOO"))
    path = rng.choice(
        ("/filter", "/prioritize", "/bind", "/../filter", "/filter/", "/%00", "/filter?%ff", "/openapi.json")
    )
    sent = f"{method} {path} HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n{{}}".encode()
    return Hostile(kind="elsewhere", sent=sent)


def at_the_limit(rng: random.Random) -> Hostile:
    """A body of exactly the limit: blank, brackets, one string, names, containers."""
    body = _question(rng)
    fill = rng.choice((b" ", b"[", b"[],", b'"a",', b'{"name":"a"},'))
    start = rng.choice((body, b'{"Pod":', b'{"NodeNames":[', b'{"Pod":{"metadata":{},"spec":{"containers":['))
    return _whole("at_the_limit", rng, (start + fill * (LIMIT_BYTES // len(fill) + 1))[:LIMIT_BYTES])


def over_the_limit(rng: random.Random) -> Hostile:
    """A body above the limit: announced and not sent, sent, or in chunks without an end."""
    over = b" " * (LIMIT_BYTES + rng.randint(1, 1000))
    block = b"10000\r\n" + b" " * 65_536 + b"\r\n"
    sent = rng.choice((
        post(rng, b"", length=LIMIT_BYTES + 1), post(rng, over), post(rng, block * 60, "Transfer-Encoding: chunked")
    ))  # fmt: skip
    return Hostile(kind="over_the_limit", sent=sent)


_SHARE_BY_MAKER: Mapping[Callable[[random.Random], Hostile], float] = {
    truncated: 15, cut_off: 3, deep: 10, wrong_types: 30, huge_numbers: 8, duplicate_keys: 6, bad_text: 8, noise: 6,
    wrong_content_type: 4, wrong_length: 3, chunked: 3, pipelined: 0.3, not_http: 1.5, elsewhere: 3,
    blank_lines: 0.02, at_the_limit: 0.1, over_the_limit: 0.1,
}  # fmt: skip


def hostile_requests(seed: int, count: int) -> Iterator[Hostile]:
    """Return `count` requests, the same ones for the same seed. Every kind comes once in the first few."""
    rng = random.Random(seed)
    makers = list(_SHARE_BY_MAKER)
    for number in range(count):
        maker = makers[number] if number < len(makers) else rng.choices(makers, list(_SHARE_BY_MAKER.values()))[0]
        yield maker(rng)

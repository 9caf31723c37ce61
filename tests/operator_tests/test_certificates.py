"""The Secrets with the certificates: made once, renewed in time, repaired, and made by one replica only."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from coda.errors import Conflict
from coda_kube.api.client import Rejected
from coda_kube.certificates import DAY_S, LEAF_S, KeyPair, is_good
from coda_operator.certificates import AUTHORITY, SECRETS_PATH, SERVES_BY_SECRET, Certificates
from tests.extender.fake_api import Call, FakeApi

NOW_S = 1_800_000_000.0


class Clock:
    now_s = NOW_S

    def __call__(self) -> float:
        return self.now_s


def pair(api: FakeApi, name: str) -> KeyPair:
    data = api.item(f"{SECRETS_PATH}/{name}")["data"]
    return KeyPair(base64.b64decode(data["tls.crt"]), base64.b64decode(data["tls.key"]))


def everything(api: FakeApi) -> dict[str, KeyPair]:
    return {name: pair(api, name) for name in (AUTHORITY, *SERVES_BY_SECRET)}


async def test_they_are_made_once() -> None:
    api, clock = FakeApi(), Clock()
    await Certificates(api, clock=clock).ensure()
    made = everything(api)
    assert all(is_good(made[name], made[AUTHORITY], now_s=NOW_S) for name in SERVES_BY_SECRET)
    assert api.item(f"{SECRETS_PATH}/coda-extender-tls")["data"].keys() == {"tls.crt", "tls.key", "ca.crt"}
    await Certificates(api, clock=clock).ensure()
    assert everything(api) == made


async def test_leaves_are_renewed_long_before_they_end_and_the_authority_stays() -> None:
    api, clock = FakeApi(), Clock()
    certificates = Certificates(api, clock=clock)
    await certificates.ensure()
    before = everything(api)
    clock.now_s += 10 * DAY_S
    await certificates.ensure()
    after = everything(api)
    assert after[AUTHORITY] == before[AUTHORITY]
    assert all(after[name] != before[name] for name in SERVES_BY_SECRET)


async def test_certificates_of_a_clock_that_was_ahead_are_made_again() -> None:
    api, clock = FakeApi(), Clock()
    clock.now_s += 200 * DAY_S
    await Certificates(api, clock=clock).ensure()
    ahead = everything(api)
    clock.now_s = NOW_S
    await Certificates(api, clock=clock).ensure()
    made = everything(api)
    assert made[AUTHORITY] != ahead[AUTHORITY]
    assert all(is_good(made[name], made[AUTHORITY], now_s=NOW_S) for name in SERVES_BY_SECRET)


async def test_it_is_shown_when_they_end_also_while_they_cannot_be_renewed_and_by_the_leader_alone() -> None:
    api, clock, shown = FakeApi(), Clock(), list[dict[str, float]]()
    certificates = Certificates(api, lambda end_s: shown.append(dict(end_s)), clock=clock)
    running = asyncio.create_task(certificates.run())
    await asyncio.sleep(1)
    assert shown[-1].keys() == {AUTHORITY, *SERVES_BY_SECRET}
    ends_s = shown[-1]["coda-extender-tls"]
    assert ends_s == pytest.approx(NOW_S + LEAF_S, abs=DAY_S)
    clock.now_s += LEAF_S - DAY_S

    def refuse(call: Call) -> None:
        if call.verb != "get":
            raise Rejected(403, "Forbidden", "no rights")

    api.before = refuse
    await asyncio.sleep(200)
    assert shown[-1]["coda-extender-tls"] == ends_s
    running.cancel()
    await asyncio.wait([running])
    assert shown[-1] == {}


@asynccontextmanager
async def shown_after_a_restart(api: FakeApi, forbids: Callable[[Call], bool]) -> AsyncIterator[dict[str, float]]:
    """What a new operator shows after a minute, if the API server forbids it these calls."""

    def refuse(call: Call) -> None:
        if forbids(call):
            raise Rejected(403, "Forbidden", "no rights")

    shown: dict[str, float] = {}
    api.before = refuse
    running = asyncio.create_task(Certificates(api, lambda end_s: shown.update(end_s), clock=Clock()).run())
    await asyncio.sleep(60)
    yield shown
    running.cancel()
    await asyncio.wait([running])


@pytest.mark.parametrize("name", [AUTHORITY, *SERVES_BY_SECRET])
async def test_a_secret_that_cannot_be_read_is_shown_as_over_and_hides_no_other(name: str) -> None:
    api = FakeApi()
    await Certificates(api, clock=Clock()).ensure()
    async with shown_after_a_restart(api, lambda call: call.path.endswith(f"/{name}")) as shown:
        assert shown.keys() == {AUTHORITY, *SERVES_BY_SECRET}
        assert [each for each, end_s in shown.items() if end_s == 0.0] == [name]


async def test_secrets_that_cannot_be_made_are_shown_as_over() -> None:
    async with shown_after_a_restart(FakeApi(), lambda call: call.verb == "create") as shown:
        assert shown == dict.fromkeys([AUTHORITY, *SERVES_BY_SECRET], 0.0)


async def test_one_that_is_removed_while_nothing_can_be_written_is_shown_as_over() -> None:
    api, shown = FakeApi(), list[dict[str, float]]()
    certificates = Certificates(api, lambda end_s: shown.append(dict(end_s)), clock=Clock())
    running = asyncio.create_task(certificates.run())
    await asyncio.sleep(1)
    assert all(shown[0].values()), "at a first start nothing is over"
    api.remove(f"{SECRETS_PATH}/coda-extender-tls")

    def refuse(call: Call) -> None:
        if call.verb == "create":
            raise Rejected(403, "Forbidden", "no rights")

    api.before = refuse
    await asyncio.sleep(200)
    assert [name for name, end_s in shown[-1].items() if end_s == 0.0] == ["coda-extender-tls"]
    running.cancel()
    await asyncio.wait([running])


async def test_a_leaf_is_renewed_although_the_other_cannot_be_read() -> None:
    api, clock = FakeApi(), Clock()
    await Certificates(api, clock=clock).ensure()
    before = everything(api)
    clock.now_s += 10 * DAY_S

    def refuse(call: Call) -> None:
        if call.path.endswith("/coda-extender-tls"):
            raise Rejected(403, "Forbidden", "no rights")

    api.before = refuse
    with pytest.raises(Rejected):
        await Certificates(api, clock=clock).ensure()
    after = everything(api)
    assert [name for name in after if after[name] != before[name]] == ["coda-scheduler-tls"]


@pytest.mark.parametrize("name", SERVES_BY_SECRET)
async def test_what_somebody_removes_or_spoils_is_made_again(name: str) -> None:
    api, clock = FakeApi(), Clock()
    certificates = Certificates(api, clock=clock)
    await certificates.ensure()
    authority = pair(api, AUTHORITY)
    api.remove(f"{SECRETS_PATH}/{name}")
    await certificates.ensure()
    assert is_good(pair(api, name), authority, now_s=NOW_S)
    api.change(f"{SECRETS_PATH}/{name}", lambda item: item.update(data={"tls.crt": "%"}))
    await certificates.ensure()
    assert is_good(pair(api, name), authority, now_s=NOW_S)


async def test_a_lost_authority_is_replaced_and_signs_both_leaves_again() -> None:
    api, clock = FakeApi(), Clock()
    certificates = Certificates(api, clock=clock)
    await certificates.ensure()
    api.remove(f"{SECRETS_PATH}/{AUTHORITY}")
    await certificates.ensure()
    found = everything(api)
    assert all(is_good(found[name], found[AUTHORITY], now_s=NOW_S) for name in SERVES_BY_SECRET)


async def test_another_replica_that_was_first_wins() -> None:
    api = FakeApi()
    others = Certificates(FakeApi(), clock=Clock())
    await others.ensure()

    def meanwhile(call: Call) -> None:
        if call.verb == "create" and call.path == SECRETS_PATH:
            api.before = None
            api.set(SECRETS_PATH, {"metadata": {"name": AUTHORITY}, "data": call.body["data"]})

    api.before = meanwhile
    with pytest.raises(Conflict):
        await Certificates(api, clock=Clock()).ensure()
    first = pair(api, AUTHORITY)
    await Certificates(api, clock=Clock()).ensure()
    assert pair(api, AUTHORITY) == first

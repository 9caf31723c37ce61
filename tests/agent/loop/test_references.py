"""What an agent stores of jobs is read by the agents before it, too: a roll-back forgets nothing."""

from __future__ import annotations

import json

from tests.agent.loop.conftest import MakeRig
from tests.agent.loop.test_contention import contended

FIRST_FIELDS = {"job", "cores", "share", "learned", "isSure", "noise", "noiseWindows", "swing"}
"""Those that every agent knows. One more must come with a file of its own, since an agent refuses what it does not
know."""


async def test_earlier_agents_know_all_that_is_stored_of_a_job(make_rig: MakeRig) -> None:
    rig = make_rig()
    train, _hog = await contended(rig)
    await rig.stop()
    (stored,) = json.loads((rig.folder / "state" / "references.json").read_bytes())
    rig.start()
    assert stored.keys() <= FIRST_FIELDS
    assert (stored["job"], stored["cores"], stored["isSure"]) == (train.uid, 4, True)
    assert stored["share"] > 0.8

"""`coda queue`, `coda top` and `coda explain` for users who may not read everything of a cluster."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from coda.errors import Outage
from coda_cli.__main__ import command_line, commands_for
from coda_cli.explain import explain_command, queue_command
from coda_cli.explain.leaders import LEASES
from coda_cli.permitted import PermittedLists, whole
from coda_cli.top import command as top_command
from coda_kube.api.client import Rejected
from coda_kube.objects.json_types import Json
from coda_kube.objects.names import GATE
from coda_kube.objects.quantities import time_from_seconds
from tests.extender.fake_api import Call, FakeApi
from tests.extender.objects import JOBS, PODS, job_json, node_json, pod_json, rank_json

Run = Callable[..., tuple[int, str, str]]
OWN = "team-a"
NARROWED = f"coda: only namespace {OWN}, that of your context: you may not list TrainingJobs of all namespaces"
PENDING = {"code": "InsufficientGPUs", "message": "needs 8 GPUs", "generation": 1}


class Cluster(FakeApi):
    """One that refuses every list whose path does not begin with one of `allowed`."""

    def __init__(self, *allowed: str) -> None:
        super().__init__()
        self.before = self._judge
        self.allowed = allowed

    def _wake(self) -> None:
        """Nobody watches, and a command has an event loop of its own."""

    def _judge(self, call: Call) -> None:
        if not call.path.startswith(self.allowed):
            plural = call.path.rpartition("/")[2]
            where = "in the namespace" if "/namespaces/" in call.path else "at the cluster scope"
            raise Rejected(403, "Forbidden", f'{plural} is forbidden: User "ann" cannot list resource {where}')


JOBS_OF_OWN, CORE_OF_OWN = f"/apis/coda.scheduler/v1alpha1/namespaces/{OWN}/", f"/api/v1/namespaces/{OWN}/"
EDIT = (JOBS_OF_OWN, CORE_OF_OWN)
CODA_EDIT = (JOBS_OF_OWN,)
"""What the roles `edit` and `coda-edit` in one namespace allow."""


def filled(api: Cluster) -> Cluster:
    def of(namespace: str, item: Json) -> Json:
        item["metadata"]["namespace"] = namespace
        return item

    for namespace in (OWN, "team-b"):
        api.set(JOBS.replace("default", namespace), of(namespace, job_json("bert", pending=PENDING)))
    gated = pod_json("a-1", cpu="2", spec={"schedulingGates": [{"name": GATE}]})
    api.set(PODS.replace("default", OWN), of(OWN, gated))
    api.set(PODS.replace("default", OWN), of(OWN, rank_json("runs", 0, "n1", node="n1")))
    api.set("/api/v1/nodes", node_json("n1"))
    spec = {"holderIdentity": "a", "renewTime": time_from_seconds(time.time())}
    api.set(LEASES, {"metadata": {"name": "coda-planner"}, "spec": spec})
    return api


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Run:
    """Returns exit code, standard output and standard error of a command."""
    kubeconfig = tmp_path / "kubeconfig"
    context = {"name": "c", "context": {"cluster": "c", "namespace": OWN}}
    clusters = [{"name": "c", "cluster": {"server": "http://127.0.0.1:1"}}]
    kubeconfig.write_text(json.dumps({"current-context": "c", "contexts": [context], "clusters": clusters}))

    def call(api: Cluster, *arguments: str) -> tuple[int, str, str]:
        async def connect(*_: object, **__: object) -> Cluster:
            return api

        for module in (queue_command, explain_command, top_command):
            monkeypatch.setattr(module, "connect", connect)
        done = CliRunner().invoke(command_line(commands_for(arguments)), [*arguments, "--kubeconfig", str(kubeconfig)])
        return done.exit_code, done.stdout, done.stderr

    return call


def test_a_bare_queue_falls_back_to_the_contexts_namespace_and_says_so(run: Run) -> None:
    code, out, errors = run(filled(Cluster(*EDIT)), "queue", "-o", "json")
    assert code == 0
    assert {line["name"] for line in json.loads(out)} == {f"{OWN}/bert", f"{OWN}/pod/a-1"}
    assert errors.splitlines() == [NARROWED]
    code, out, errors = run(filled(Cluster(*EDIT)), "queue")
    assert (code, "team-b" in out, errors.splitlines()) == (0, False, [NARROWED])


def test_whoever_may_read_all_sees_all_and_no_note(run: Run) -> None:
    code, out, errors = run(filled(Cluster("/")), "queue", "-o", "json")
    assert {line["name"] for line in json.loads(out)} == {f"{OWN}/bert", f"{OWN}/pod/a-1", "team-b/bert"}
    assert (code, errors) == (0, "")


def test_whoever_may_read_the_lease_is_told_that_no_planner_runs(run: Run) -> None:
    api = filled(Cluster("/"))
    api.change(f"{LEASES}/coda-planner", lambda lease: lease["spec"].pop("holderIdentity"))
    _, _, errors = run(api, "queue")
    assert errors == "coda: nothing is decided now, and reasons may be old: no planner leads now\n"


def test_all_namespaces_are_not_replaced_by_one(run: Run) -> None:
    code, out, errors = run(filled(Cluster(*EDIT)), "queue", "-A")
    assert (code, out) == (1, "")
    assert errors.strip().endswith("at the cluster scope; ask for one that you may read: -n NAMESPACE")


def test_a_context_whose_namespace_is_refused_too_is_one_sentence(run: Run) -> None:
    for command in (["queue"], ["top", "--once"]):
        code, out, errors = run(filled(Cluster("/nothing")), *command)
        assert (code, out) == (1, "")
        assert "in the namespace; choose a namespace that you may read: kubectl config set-context" in errors


def test_pods_and_events_that_may_not_be_listed_are_none_with_one_note(run: Run) -> None:
    note = "coda: without pods and events: you may not list them"
    code, out, errors = run(filled(Cluster(*CODA_EDIT)), "queue", "-n", OWN, "-o", "json")
    assert (code, [line["name"] for line in json.loads(out)]) == (0, [f"{OWN}/bert"])
    assert errors.splitlines() == [note]
    code, out, errors = run(filled(Cluster(*CODA_EDIT)), "explain", "bert")
    assert (code, "Why: InsufficientGPUs: needs 8 GPUs." in out, errors.splitlines()) == (0, True, [note])
    code, out, _ = run(filled(Cluster(*CODA_EDIT)), "explain", "bert", "-o", "json")
    assert (code, json.loads(out)["code"]) == (0, "InsufficientGPUs")


def test_a_pod_that_may_not_be_read_is_not_called_one_that_does_not_wait(run: Run) -> None:
    code, _, errors = run(filled(Cluster(*CODA_EDIT)), "explain", "pod/a-1")
    assert (code, "pods is forbidden" in errors) == (1, True)


def test_top_shows_what_a_user_of_one_namespace_may_read(run: Run) -> None:
    notes = [NARROWED, "coda: without nodes: you may not list them"]
    code, out, errors = run(filled(Cluster(*EDIT)), "top", "-o", "json")
    told = json.loads(out)
    assert (code, told["nodes"], told["throttles"], errors.splitlines()) == (0, None, None, notes)
    of_small = next(array for array in told["arrays"] if array["name"] == "small GPU jobs")
    assert (of_small["pods"], of_small["gpus"]) == (1, 8)
    code, out, errors = run(filled(Cluster(*EDIT)), "top", "--once")
    assert (code, "Arrays" in out, "Nodes" in out, errors.splitlines()) == (0, True, False, notes)


async def test_a_live_top_has_the_notes_below_its_tables() -> None:
    use, notes = await top_command.read_use(filled(Cluster(*EDIT)), OWN)
    console = Console(width=140)
    with console.capture() as captured:
        console.print(top_command.drawn(use, notes=notes))
    assert "only namespace team-a" in captured.get()


async def test_only_a_refusal_narrows_a_list() -> None:
    api = filled(Cluster("/"))

    def be_away(_: Call) -> None:
        raise Outage("HTTP 503")

    api.before = be_away
    with pytest.raises(Outage):
        await PermittedLists(api, instead=OWN).training_jobs(whole)

from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from coda.errors import InvalidInput
from coda.model import Phase
from coda_cli.demo.command import _say_how_to_look, problems_of
from coda_cli.demo.examples import Example, examples_in
from coda_cli.demo.job_table import compressed, live_table, reasons_of, sentence_of, summary_table
from coda_cli.job_history import History, WaitRecord
from coda_cli.target_cluster import TargetCluster
from coda_sim.workload import shape_from_text

NEVER = WaitRecord(code="NeverFits", message="no node has 16 GPUs", seen_s=1.0)
EXAMPLES = Path(__file__).parents[3] / "examples"
CLUSTER = shape_from_text("8x8x48")


def example(name: str) -> Example:
    return {one.name: one for one in examples_in(EXAMPLES, namespace="default", speed=1.0)}[name]


def history(name: str, phase: Phase, *, pending: WaitRecord | None = None) -> History:
    reasons = (pending,) if pending else ()
    return History(name=name, gpus=16, cores=32, phase=phase, pending=pending, reasons=reasons, attempt=1)


def test_the_examples_show_what_they_are_meant_to() -> None:
    examples = examples_in(EXAMPLES, namespace="default", speed=2.0)
    fits = {one.name: one.fits(CLUSTER) for one in examples}
    assert [name for name, does in fits.items() if not does] == ["too-large"]
    gpus = {
        one.name: one.manifest["spec"].get("replicas", 1) * one.manifest["spec"]["gpusPerReplica"] for one in examples
    }
    assert gpus["resnet-16"] == 16
    assert sum(count for name, count in gpus.items() if name not in ("too-large", "gpt-64")) > CLUSTER.gpus
    annotations = {one.name: one.manifest["spec"]["template"].get("metadata", {}) for one in examples}
    assert annotations["mnist"]["annotations"] == {"sim.coda.scheduler/run-seconds": "6"}
    assert annotations["flaky"]["annotations"]["sim.coda.scheduler/run-seconds.rank-1"] == "2"
    assert annotations["flaky"]["annotations"]["sim.coda.scheduler/exit-code.attempt-1"] == "1"


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("kind: Pod\napiVersion: v1\n", "has an object that is no TrainingJob"),
        ("[1, 2", "cannot be read as YAML"),
        ("apiVersion: coda.scheduler/v1alpha1\nkind: TrainingJob\nmetadata: {}\n", "without name, template"),
        ("", "has no example"),
    ],
)
def test_a_folder_of_something_else_is_one_clear_error(tmp_path: Path, text: str, sentence: str) -> None:
    (tmp_path / "a.yaml").write_text(text)
    with pytest.raises(InvalidInput, match=sentence):
        examples_in(tmp_path, namespace="default", speed=1.0)


def test_two_jobs_of_one_name_are_told_before_anything_starts(tmp_path: Path) -> None:
    text = (EXAMPLES / "10-one-gpu.yaml").read_text()
    (tmp_path / "a.yaml").write_text(text)
    (tmp_path / "b.yaml").write_text(text)
    with pytest.raises(InvalidInput, match=r"b\.yaml and a\.yaml both have a job mnist"):
        examples_in(tmp_path, namespace="default", speed=1.0)


def test_a_job_that_fits_the_cluster_must_succeed_and_one_that_does_not_may_say_never() -> None:
    jobs = [example("mnist"), example("too-large")]
    good = {"mnist": history("mnist", Phase.SUCCEEDED), "too-large": history("too-large", Phase.QUEUED, pending=NEVER)}
    assert problems_of(jobs, good, CLUSTER) == []
    wrong = {**good, "mnist": history("mnist", Phase.QUEUED, pending=NEVER)}
    assert problems_of(jobs, wrong, CLUSTER) == [
        "10-one-gpu.yaml: mnist should have succeeded, but is Queued (NeverFits: no node has 16 GPUs)"
    ]
    failed = {**good, "mnist": history("mnist", Phase.FAILED)}
    assert problems_of(jobs, failed, CLUSTER) == ["10-one-gpu.yaml: mnist should have succeeded, but is Failed ()"]


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        ([], ""),
        (["node-0003"], "node-0003"),
        (["node-0001", "node-0000", "node-0001"], "node-[0000-0001]"),
        (["node-0000", "node-0001", "node-0003", "node-0007", "node-0008"], "node-[0000-0001,0003,0007-0008]"),
        (["a9", "a10", "b1", "plain"], "plain, a[9,10], b1"),
    ],
)
def test_node_names_are_drawn_together(names: list[str], expected: str) -> None:
    assert compressed(names) == expected


def test_a_line_says_who_where_and_why() -> None:
    waiting = history("gpt", Phase.QUEUED, pending=NEVER)
    assert sentence_of(waiting) == "gpt (16 GPUs, 32 cores) Queued: NeverFits: no node has 16 GPUs"
    running = History(name="gpt", gpus=1, cores=2, phase=Phase.RUNNING, attempt=2, nodes=("node-0001",))
    assert sentence_of(running) == "gpt (1 GPU, 2 cores) Running, attempt 2 on node-0001"


def test_the_tables_have_a_row_per_job() -> None:
    histories = [history("a", Phase.SUCCEEDED), history("b", Phase.QUEUED, pending=NEVER)]
    assert live_table(histories).row_count == summary_table(histories).row_count == 2


def test_the_tables_have_whole_titles_in_80_columns() -> None:
    nodes = tuple(f"node-{number:04}" for number in (0, 1, 2, 5, 7))
    short = WaitRecord(code="NeverFits", message="too large", seen_s=1.0)
    running = History(name="resnet-16", gpus=16, cores=128, phase=Phase.RUNNING, attempt=2, nodes=nodes)
    for table in (live_table, summary_table):
        file = StringIO()
        Console(file=file, width=80).print(table([running, history("gpt-64", Phase.QUEUED, pending=short)]))
        assert "…" not in file.getvalue()
        assert "node-[0000-0002,0005,0007]" in file.getvalue()


def test_a_waiting_job_s_reasons_are_told_once_per_code() -> None:
    full = WaitRecord(code="InsufficientGPUs", message="3 of 8 free", seen_s=1.0)
    fuller = WaitRecord(code="InsufficientGPUs", message="7 of 8 free", seen_s=2.0)
    waited = History(name="a", gpus=8, cores=8, phase=Phase.SUCCEEDED, reasons=(full, fuller))
    assert reasons_of([waited, history("b", Phase.QUEUED, pending=NEVER), history("c", Phase.SUCCEEDED)]) == [
        "a waited: InsufficientGPUs: 7 of 8 free",
        "b can never fit: NeverFits: no node has 16 GPUs",
    ]


def test_the_newest_events_come_last_in_what_people_are_told_to_type() -> None:
    """Coda's events have an `eventTime` and no `lastTimestamp`, so that kubectl would leave them in etcd's order."""
    console = Console(file=StringIO(), width=140)
    target = TargetCluster(client=None, shape=CLUSTER, where="here", kubectl="kubectl", ended_parts=tuple)  # type: ignore[arg-type]
    _say_how_to_look(target, console)
    said = console.file.getvalue()  # type: ignore[attr-defined]
    assert "get events --sort-by=.metadata.creationTimestamp" in said
    pages = [*(EXAMPLES.parent / "docs").rglob("*.md"), EXAMPLES.parent / "README.md"]
    assert [page.name for page in pages if "--sort-by=.lastTimestamp" in page.read_text()] == []

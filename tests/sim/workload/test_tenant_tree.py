"""Files of virtual clusters, and the workload that they are for."""

from dataclasses import replace
from pathlib import Path

import pytest

from coda.errors import InvalidInput
from coda_sim.workload import Cores, Gang, gangs_from_rows, shape_from_text
from coda_sim.workload.tenant_tree import SHARES, strangers_of, tenants_of
from tests.sim.worlds import row


def gangs(*tenants: str) -> tuple[Gang, ...]:
    rows = [replace(row(f"j{number}"), virtual_cluster=tenant) for number, tenant in enumerate(tenants)]
    return gangs_from_rows(rows, shape_from_text("2x8x28"), Cores())[0]


def tree(folder: Path, *lines: str, encoding: str = "utf-8") -> str:
    path = folder / "tree.csv"
    path.write_text("\n".join(["name,parent,gpus", *lines]) + "\n", encoding=encoding)
    return str(path)


def test_a_file_of_a_spreadsheet_begins_with_a_byte_order_mark(tmp_path: Path) -> None:
    found, jobs = tenants_of(tree(tmp_path, "red,,8", encoding="utf-8-sig"), gangs("red"), 16)
    assert [(one.name, one.gpus) for one in found] == [("red", 8)]
    assert jobs == gangs("red")


@pytest.mark.parametrize(
    ("lines", "sentence"),
    [
        (
            ("org,,", "rde,org,8"),
            "no job is in its virtual clusters (org, rde): name those of the workload (blue, red)",
        ),
        ((), "no job is in its virtual clusters (none): name those of the workload (blue, red)"),
    ],
)
def test_a_file_in_whose_tenants_there_is_no_job_is_refused(
    lines: tuple[str, ...], sentence: str, tmp_path: Path
) -> None:
    path = tree(tmp_path, *lines)
    with pytest.raises(InvalidInput) as refused:
        tenants_of(path, gangs("red", "", "blue"), 16)
    assert str(refused.value) == f"--tenants {path}: {sentence}"


def test_a_file_for_a_workload_without_tenants_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="no job of the workload names a virtual cluster; shares makes some up"):
        tenants_of(tree(tmp_path, "red,,8"), gangs("", ""), 16)


def test_only_some_names_of_many_are_said(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"\(red\): name those of the workload \(t0, t1, t2, t3, t4, \.\.\.\)"):
        tenants_of(tree(tmp_path, "red,,8"), gangs(*(f"t{number}" for number in range(9))), 16)


def test_tenants_without_a_job_and_jobs_without_a_tenant_are_said(tmp_path: Path) -> None:
    path = tree(tmp_path, "org,,", "red,org,8", "green,org,4")
    assert strangers_of(path, gangs("red", "blue", "", "blue")) == (
        f"--tenants {path}: 1 virtual cluster without a job: green",
        f"--tenants {path}: 3 jobs in none of its virtual clusters (blue)",
    )


def test_where_all_are_met_nothing_is_said(tmp_path: Path) -> None:
    path = tree(tmp_path, "org,,", "red,org,8")
    assert strangers_of(path, gangs("red", "org")) == ()  # a tenant with children may have jobs of its own
    assert strangers_of(SHARES, gangs("red")) == strangers_of("", gangs("red")) == ()


@pytest.mark.parametrize(
    ("lines", "sentence"),
    [
        (("org,,8", "", "red,ogr,"), ":4: red: its parent ogr does not exist"),
        (("red,red,8",), ":2: red: its parents form a loop (red < red)"),
        (("org,red,8", "red,org,"), ":2: org: its parents form a loop (org < red < org)"),
        (
            ("red,,8", *(f"t{level},{f't{level - 1}' if level else 'red'}," for level in range(8))),
            ":10: t7: it would be on level 9, and 8 levels are the most",
        ),
    ],
)
def test_a_broken_tree_is_refused_with_its_line(lines: tuple[str, ...], sentence: str, tmp_path: Path) -> None:
    path = tree(tmp_path, *lines)
    with pytest.raises(InvalidInput) as refused:
        tenants_of(path, gangs("red"), 16)
    assert str(refused.value) == f"--tenants {path}{sentence}"

"""Every word that Coda gives as a reason is in the reference, and no other."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import yaml

from coda.allocator import SearchOutcome, resize, tuning
from coda.model.decision import DenialCode
from coda.model.trial_run import TrialOutcome
from coda.tenants.tree import Detached
from docs.reference_pages.events import OF_A_JOB, OF_A_SEARCH, OF_CPU_JOBS, OF_NODES, OF_PODS, OF_QUOTAS
from tests.docs import blocks as code

ALL = {**OF_A_JOB, **OF_CPU_JOBS, **OF_PODS, **OF_NODES, **OF_A_SEARCH, **OF_QUOTAS}
FOLDERS = ("core/coda", "core/coda_kube", "operator/coda_operator", "scheduler_extender/coda_extender", "node_agent")
WORD = re.compile(r"[A-Z][a-z]+(?:[A-Z]+[a-z]*)*|[A-Z][A-Za-z]+")
GIVES = re.compile(r"post|_tell$|_condition$")  # calls whose second argument is a reason
ANSWERS = re.compile(r"reason_|problem_of$")  # functions that return a reason, or a pair that begins with one
NOT_SHOWN = {"New", "Completed", "Deleted"}  # before a first status; of a container; in the history of CPU jobs only


def trees() -> Iterator[ast.Module]:
    for folder in FOLDERS:
        for path in sorted((code.ROOT / folder).rglob("*.py")):
            yield ast.parse(path.read_text(encoding="utf-8"))


def test_every_reason_in_the_code_is_in_the_reference() -> None:
    modules = list(trees())
    words = {name: word for tree in modules for name, word in constants(tree)}
    found = {word for tree in modules for node in ast.walk(tree) for word in reasons(node, words)}
    assert {"RankFailed", "PlaceLost", "BindDeadlineExceeded"} <= found
    assert {"VolumeClaimLost", "HeldByJobs", "NamedTwice", "ParentOwnsLess", "NodeTooSmall", "SuspectGPU"} <= found
    assert sorted(found - ALL.keys() - NOT_SHOWN) == []


def test_every_word_of_these_vocabularies_is_in_the_reference() -> None:
    assert {outcome.value for outcome in SearchOutcome} <= OF_A_SEARCH.keys()
    assert {code.value for code in DenialCode} | tuning.NEVER | tuning.SILENCES <= OF_A_SEARCH.keys()
    for module in (tuning, resize):
        given = {word for _name, word in constants(ast.parse(Path(str(module.__file__)).read_text(encoding="utf-8")))}
        assert given <= OF_A_SEARCH.keys()
    assert {f"Trial{outcome.value}" for outcome in TrialOutcome} <= OF_A_JOB.keys()
    assert {why.value for why in Detached} <= OF_QUOTAS.keys()


def test_every_reason_of_the_reference_is_in_the_code() -> None:
    said = {
        node.value
        for tree in trees()
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    made = {f"Trial{outcome.value}" for outcome in TrialOutcome}
    assert sorted(ALL.keys() - said - made) == []


def test_the_fields_that_the_reasons_of_jobs_name_exist() -> None:
    """A name with or without its path, and with a value or not: `spec.suspend`, `onNodeLoss: Wait`."""
    definition = yaml.load((code.ROOT / "crds" / "trainingjobs.yaml").read_text(), yaml.CSafeLoader)
    properties = definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]
    fields = {f"{part}.{name}" for part in ("spec", "status") for name in properties[part]["properties"]}
    fields |= {field.partition(".")[2] for field in fields}
    named = {name for said in OF_A_JOB.values() for name in re.findall(r"`([a-z][A-Za-z.]*)(?:: \w+)?`", said)}
    assert "spec.suspend" in named
    assert sorted(named - fields) == []


def constants(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """The names that a module gives to words."""
    for node in tree.body:
        if isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(node.value, ast.Constant):
            target = node.targets[0] if isinstance(node, ast.Assign) else node.target
            if isinstance(target, ast.Name) and isinstance(node.value.value, str):
                yield target.id, node.value.value


def reasons(node: ast.AST, word_by_name: Mapping[str, str]) -> set[str]:
    """The reasons that this piece of code gives: to a call, in an object, or as its answer."""
    given: list[ast.expr] = []
    if isinstance(node, ast.Call):
        given += [word.value for word in node.keywords if word.arg == "reason"]
        name = str(getattr(node.func, "attr", None) or getattr(node.func, "id", ""))
        given += node.args[1:2] if GIVES.match(name) else []
    elif isinstance(node, ast.Dict):
        given += [value for key, value in zip(node.keys, node.values, strict=True) if is_reason(key)]
    elif isinstance(node, ast.FunctionDef) and ANSWERS.match(node.name):
        given += [one.value for one in ast.walk(node) if isinstance(one, ast.Return) and one.value is not None]
    elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Tuple) and is_named(node.targets[0].elts[0]):
        given.append(node.value)
    constant = {one.value for each in given for one in leaves(each) if isinstance(one, ast.Constant)}
    named = {word_by_name.get(one.id, "") for each in given for one in leaves(each) if isinstance(one, ast.Name)}
    return {word for word in constant | named if isinstance(word, str) and WORD.fullmatch(word)}


def is_reason(key: ast.expr | None) -> bool:
    return isinstance(key, ast.Constant) and key.value == "reason"


def is_named(target: ast.expr) -> bool:
    return isinstance(target, ast.Name) and target.id == "reason"


def leaves(value: ast.expr) -> Iterator[ast.expr]:
    """What an expression may come to; of a tuple, its first."""
    if isinstance(value, ast.IfExp):
        yield from (*leaves(value.body), *leaves(value.orelse))
    elif isinstance(value, ast.BoolOp):
        yield from (leaf for each in value.values for leaf in leaves(each))
    elif isinstance(value, ast.Tuple):
        yield from leaves(value.elts[0])
    else:
        yield value

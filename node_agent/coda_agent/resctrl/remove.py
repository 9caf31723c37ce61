"""Removes everything of the agent's from a resctrl tree, in any state that it was left in.

The throttle group goes first, and every limit with it. No record is necessary: only threads of the root were ever
moved, and removing a group brings them back there."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass

from coda_agent.host import Tree
from coda_agent.resctrl.layout import MON_GROUPS, NO_GROUPS, inside, is_ours
from coda_agent.resctrl.schemata import bandwidth_limits, limit_command


@dataclass(frozen=True, slots=True, kw_only=True)
class Removed:
    """What was done: directories removed, and one sentence for each that cannot be removed."""

    removed: tuple[str, ...]
    failures: tuple[str, ...]


def remove_all(tree: Tree) -> Removed:
    """Remove every group with the agent's prefix. Goes on after failures; without resctrl there is nothing to do."""
    removed: list[str] = []
    failures: list[str] = []
    with ExitStack() as stack:
        with suppress(OSError):  # for other programs; each single step is safe without the lock
            stack.enter_context(tree.locked())
        for directory, failure in _removals(tree):
            if failure is None:
                removed.append(directory)
            else:
                failures.append(f"{directory} cannot be removed: {failure.strerror}")
    return Removed(removed=tuple(removed), failures=tuple(failures))


def rescue_foreign(tree: Tree, control: str) -> None:
    """Move other programs' monitoring groups from a control group of ours to the root, where they survive its
    removal."""
    for name in _names(tree, inside(control, MON_GROUPS)):
        if not is_ours(name):
            with suppress(OSError):
                tree.rename(f"{control}/{MON_GROUPS}/{name}", f"{MON_GROUPS}/{name}")


def _removals(tree: Tree) -> Iterator[tuple[str, OSError | None]]:
    if not tree.exists("info"):
        return
    controls = [name for name in _names(tree, ".") if name not in NO_GROUPS]
    for control in (name for name in controls if is_ours(name)):
        rescue_foreign(tree, control)
        failure = _rmdir_failure(tree, control)
        if failure is not None:
            _unlimit(tree, control)
        yield control, failure
    for control in ("", *controls):
        place = inside(control, MON_GROUPS)
        for name in _names(tree, place):
            if is_ours(name):
                yield f"{place}/{name}", _rmdir_failure(tree, f"{place}/{name}")


def _rmdir_failure(tree: Tree, directory: str) -> OSError | None:
    try:
        tree.rmdir(directory)
    except FileNotFoundError:
        return None
    except OSError as failure:
        return failure
    return None


def _unlimit(tree: Tree, control: str) -> None:
    """A group that cannot be removed must at least limit nothing."""
    with suppress(OSError):
        for domain, value in bandwidth_limits(tree.read_text("schemata")).items():
            tree.write(f"{control}/schemata", limit_command(domain, value))


def _names(tree: Tree, directory: str) -> tuple[str, ...]:
    try:
        return tree.listdir(directory)
    except OSError:
        return ()

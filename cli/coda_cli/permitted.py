"""Lists of a cluster as far as their reader may see them: one namespace instead of all, and none of what is refused.

A cluster has 100,000 pods, of 36 KiB each. So each is read as its page arrives, and only what is read of it is kept."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from http import HTTPStatus
from typing import Final, TypeVar

from rich.console import Console

from coda.errors import InvalidInput
from coda.wording import listed
from coda_kube.api.client import Client, NotServed, Rejected
from coda_kube.objects.json_types import Json
from coda_kube.objects.names import API_VERSION

_AT_ONCE: Final = 500  # as kubectl reads: a page is 20 MiB of pods

T = TypeVar("T")
Read = Callable[[Json], T | None]
"""What is kept of an object; None: nothing."""


def whole(item: Json) -> Json:
    """Keep all of it."""
    return item


class PermittedLists:
    """Lists of one namespace, or of the whole cluster (`namespace`: empty), of what `read` keeps of each object.

    `instead`: the namespace that is read if the TrainingJobs of the whole cluster are refused; empty: none is. Only
    the answer 403 counts as a refusal: every other error is raised."""

    def __init__(self, client: Client, namespace: str = "", *, instead: str = "") -> None:
        self._client = client
        self.namespace = namespace
        self._instead = "" if namespace else instead
        self.refused: dict[str, Rejected] = {}  # by the word for what was asked for
        self._is_narrowed = False

    async def training_jobs(self, read: Read[T]) -> list[T]:
        """Return the TrainingJobs. Asked first, they decide which namespace everything else is read of.

        Raises InvalidInput where Coda is not installed, and Rejected where none may be listed."""
        try:
            return await self._items(f"/apis/{API_VERSION}", "trainingjobs", read)
        except NotServed as error:
            raise InvalidInput("this cluster has no TrainingJobs: install Coda first (docs/installing.md)") from error
        except Rejected as error:
            if error.status != HTTPStatus.FORBIDDEN or self.namespace:
                raise
            if not self._instead:
                raise _with_advice(error, "ask for one that you may read: -n NAMESPACE") from error
        self.namespace, self._is_narrowed = self._instead, True
        try:
            return await self._items(f"/apis/{API_VERSION}", "trainingjobs", read)
        except Rejected as error:
            if error.status != HTTPStatus.FORBIDDEN:
                raise
            how = "kubectl config set-context --current --namespace NAMESPACE"
            raise _with_advice(error, f"choose a namespace that you may read: {how}") from error

    async def core(self, plural: str, read: Read[T], query: Mapping[str, str] | None = None) -> list[T]:
        """Return the pods or events of the namespace; none if they may not be listed."""
        return await self._permitted(plural, read, self.namespace, query) or []

    async def nodes(self, read: Read[T]) -> list[T] | None:
        """Return the nodes; None if they may not be listed."""
        return await self._permitted("nodes", read, "")

    def notes(self) -> tuple[str, ...]:
        """Return a sentence for each way in which the lists are not the whole."""
        found = []
        if self._is_narrowed:
            why = "you may not list TrainingJobs of all namespaces"
            found.append(f"only namespace {self.namespace}, that of your context: {why}")
        if self.refused:
            found.append(f"without {listed(self.refused)}: you may not list them")
        return tuple(found)

    async def _permitted(
        self, plural: str, read: Read[T], namespace: str, query: Mapping[str, str] | None = None
    ) -> list[T] | None:
        try:
            found = await self._items("/api/v1", plural, read, namespace, query)
        except Rejected as error:
            if error.status != HTTPStatus.FORBIDDEN:
                raise
            self.refused[plural] = error
            return None
        return found

    async def _items(
        self,
        group: str,
        plural: str,
        read: Read[T],
        namespace: str | None = None,
        query: Mapping[str, str] | None = None,
    ) -> list[T]:
        wanted = self.namespace if namespace is None else namespace
        within = f"/namespaces/{wanted}" if wanted else ""
        return await kept(self._client, f"{group}{within}/{plural}", read, query)


async def kept(client: Client, path: str, read: Read[T], query: Mapping[str, str] | None = None) -> list[T]:
    """Return what `read` keeps of each object of a collection, page by page. Raises as `read` and the pages do."""
    found: list[T] = []
    async for page in client.pages(path, query, _AT_ONCE):
        items = page.pop("items", None) or []  # else both pages are there while the next one is read
        found += [part for item in items if (part := read(item)) is not None]
        del items
    return found


def print_notes(console: Console, notes: Iterable[str]) -> None:
    """Print the notes to `console`, which is standard error: a result for programs has none."""
    for note in notes:
        console.print(f"coda: {note}", markup=False, highlight=False, soft_wrap=True)


def _with_advice(error: Rejected, advice: str) -> Rejected:
    return Rejected(error.status, error.reason, f"{error}; {advice}")

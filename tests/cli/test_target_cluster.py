"""The cluster that `coda replay` submits to is said by its address."""

from __future__ import annotations

from pathlib import Path

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from coda_cli.target_cluster import cluster_target
from tests.cli.test_command_line import kubeconfig


async def test_an_existing_cluster_is_called_by_its_servers_address(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kubeconfig may name another cluster than people think."""

    async def nodes(_: web.Request) -> web.Response:
        status = {"allocatable": {"nvidia.com/gpu": "8", "cpu": "48"}}
        return web.json_response({"metadata": {}, "items": [{"metadata": {"name": "n"}, "spec": {}, "status": status}]})

    app = web.Application()
    app.router.add_get("/api/v1/nodes", nodes)
    async with TestServer(app, host="127.0.0.1") as server:
        address = f"http://127.0.0.1:{server.port}"
        monkeypatch.setenv("KUBECONFIG", str(kubeconfig(tmp_path, server=address)))
        async with cluster_target(None) as (target, _):
            assert target.where == f"the cluster at {address}"

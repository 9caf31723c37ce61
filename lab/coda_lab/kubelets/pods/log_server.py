"""The kubelets' HTTPS port: container logs, as the API server asks for them. All machines share one port."""

from __future__ import annotations

import socket
import ssl
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from aiohttp import web

from coda.errors import InvalidInput
from coda_lab.kubelets.fleet import Fleet
from coda_lab.kubelets.pods.logs import log_lines, log_query, rendered, why_no_log
from coda_lab.kubelets.pods.statuses import HOST_ADDRESS

_SHUTDOWN_S = 1.0


def listen(port: int) -> socket.socket:
    """A listening socket on the loopback address; 0 takes a free port. Raises InvalidInput."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((HOST_ADDRESS, port))
    except OSError as error:
        listener.close()
        raise InvalidInput(
            f"--port {port}: cannot listen on {HOST_ADDRESS}: {error.strerror}; choose another"
        ) from error
    return listener


def tls_context(certificate: str, key: str) -> ssl.SSLContext:
    """The server side of TLS with this certificate. Raises InvalidInput."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(certificate, key)
    except (OSError, ssl.SSLError) as error:
        raise InvalidInput(f"--tls-cert {certificate} with --tls-key {key}: {error}") from error
    return context


@asynccontextmanager
async def serve_logs(fleet: Fleet, listener: socket.socket, tls: ssl.SSLContext) -> AsyncIterator[None]:
    """Answer log requests while the context is open."""

    async def answer(request: web.Request) -> web.StreamResponse:
        return await _container_log(fleet, request)

    app = web.Application()
    app.router.add_get("/containerLogs/{namespace}/{pod}/{container}", answer)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=_SHUTDOWN_S)
    await runner.setup()
    try:
        await web.SockSite(runner, listener, ssl_context=tls).start()
        yield
    finally:
        await runner.cleanup()


async def _container_log(fleet: Fleet, request: web.Request) -> web.StreamResponse:
    namespace, name, container = (request.match_info[part] for part in ("namespace", "pod", "container"))
    pod = fleet.pod(namespace, name)
    if pod is None:
        return web.Response(status=404, text=f'pod "{name}" does not exist')
    if pod.machine.silent:
        return web.Response(status=503, text=f"the kubelet of {pod.machine.name} does not answer")
    if container not in {each.name for each in (*pod.containers, *pod.init_containers)}:
        return web.Response(status=404, text=f'container "{container}" not found in pod "{name}"')
    why_not = why_no_log(pod, container)
    if why_not is not None:
        return web.Response(status=400, text=why_not)
    try:
        query = log_query(request.query, now_s=time.time())
    except InvalidInput as error:
        return web.Response(status=400, text=str(error))
    written = log_lines(pod, container)
    response = web.StreamResponse(headers={"Content-Type": "text/plain"})
    await response.prepare(request)
    await response.write(rendered(written, query))
    if query.follow:
        await pod.wait_until_over()
        await response.write(rendered(log_lines(pod, container)[len(written) :], query))
    await response.write_eof()
    return response

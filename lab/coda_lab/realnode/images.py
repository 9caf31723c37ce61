"""Container images without a registry: one static program each, as an archive for `ctr images import`. Pure.

Source: the Docker image specification v1.2; containerd wants `rootfs.diff_ids` in the configuration.
"""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from collections.abc import Mapping, Sequence

PAUSE = "coda.local/pause:1"
BUSYBOX = "coda.local/busybox:1"


def pause_image(program: bytes) -> bytes:
    """The image of pod sandboxes."""
    return archive(PAUSE, {"pause": program}, command=("/pause",))


def busybox_image(program: bytes, applets: Sequence[str]) -> bytes:
    """A small userland: a shell and the usual commands, as links to busybox."""
    links = {f"bin/{applet}": "busybox" for applet in applets if applet != "busybox"}
    return archive(BUSYBOX, {"bin/busybox": program}, links=links, command=("/bin/sh",))


def archive(
    name: str, content_by_path: Mapping[str, bytes], *, command: Sequence[str], links: Mapping[str, str] | None = None
) -> bytes:
    """A docker-archive with one image of one layer; the files in it are executable. Same input, same bytes."""
    layer = _tar(content_by_path, links or {})
    config = {
        "architecture": "amd64",
        "os": "linux",
        "config": {"Cmd": list(command), "Env": ["PATH=/bin"]},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(layer).hexdigest()}"]},
    }
    manifest = [{"Config": "config.json", "RepoTags": [name], "Layers": ["layer.tar"]}]
    parts = {"config.json": _json(config), "layer.tar": layer, "manifest.json": _json(manifest)}
    return _tar(parts, {})


def _tar(content_by_path: Mapping[str, bytes], links: Mapping[str, str]) -> bytes:
    sink = io.BytesIO()
    with tarfile.open(fileobj=sink, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for path, content in content_by_path.items():
            entry = tarfile.TarInfo(path)
            entry.mode, entry.size = 0o755, len(content)
            tar.addfile(entry, io.BytesIO(content))
        for path, target in links.items():
            entry = tarfile.TarInfo(path)
            entry.type, entry.linkname = tarfile.SYMTYPE, target
            tar.addfile(entry)
    return sink.getvalue()


def _json(value: object) -> bytes:
    return json.dumps(value).encode()

"""An OCI archive of one image, as `ctr images import` and `skopeo` read it. Same layers, same bytes.

Source: the OCI image specification 1.1 (image-layout.md, config.md, manifest.md).
"""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Final

_TYPE: Final = "application/vnd.oci.image"
_BLOCK: Final = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageConfig:
    """What a container of the image runs."""

    entrypoint: tuple[str, ...]
    environ: Mapping[str, str] = field(default_factory=dict)
    user: str = ""  # `number:number`; empty: root


def write_archive(path: Path, name: str, layers: Sequence[Path], config: ImageConfig) -> None:
    """Write the image `name` (`registry/repository:tag`) of these layers, tar files, the lowest first."""
    digests = [_digest_of(layer) for layer in layers]
    image = {
        "architecture": "amd64",
        "os": "linux",
        "config": {
            "Entrypoint": list(config.entrypoint),
            "Env": [f"{key}={value}" for key, value in config.environ.items()],
            **({"User": config.user} if config.user else {}),
        },
        "rootfs": {"type": "layers", "diff_ids": digests},
    }
    described = [
        _descriptor("layer.v1.tar", digest, layer.stat().st_size) for digest, layer in zip(digests, layers, strict=True)
    ]
    blobs = {_digest(text := _json(image)): text}
    manifest = _json(_manifest(_descriptor("config.v1+json", _digest(text), len(text)), described))
    blobs[_digest(manifest)] = manifest
    names = {"io.containerd.image.name": name, "org.opencontainers.image.ref.name": name.rpartition(":")[2]}
    entry = _descriptor("manifest.v1+json", _digest(manifest), len(manifest)) | {"annotations": names}
    index = {"schemaVersion": 2, "mediaType": f"{_TYPE}.index.v1+json", "manifests": [entry]}
    with tarfile.open(path, "w", format=tarfile.USTAR_FORMAT) as tar:
        _add_text(tar, "oci-layout", _json({"imageLayoutVersion": "1.0.0"}))
        _add_text(tar, "index.json", _json(index))
        for digest, text in blobs.items():
            _add_text(tar, _blob(digest), text)
        for digest, layer in zip(digests, layers, strict=True):
            with layer.open("rb") as content:
                _add(tar, _blob(digest), layer.stat().st_size, content)


def write_layer(path: Path, content_by_path: Mapping[str, bytes]) -> None:
    """Write a tar of these files, readable by all, in the order of their paths; their times are 1970."""
    with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as tar:
        for name in sorted(content_by_path):
            _add_text(tar, name, content_by_path[name])


def _manifest(config: Mapping[str, Any], layers: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    kind = f"{_TYPE}.manifest.v1+json"
    return {"schemaVersion": 2, "mediaType": kind, "config": dict(config), "layers": list(layers)}


def _descriptor(kind: str, digest: str, size: int) -> dict[str, Any]:
    return {"mediaType": f"{_TYPE}.{kind}", "digest": digest, "size": size}


def _blob(digest: str) -> str:
    return f"blobs/{digest.replace(':', '/')}"


def _digest(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def _digest_of(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            digest.update(block)
    return f"sha256:{digest.hexdigest()}"


def _json(value: object) -> bytes:
    return json.dumps(value, sort_keys=True).encode()


def _add_text(tar: tarfile.TarFile, name: str, content: bytes) -> None:
    _add(tar, name, len(content), io.BytesIO(content))


def _add(tar: tarfile.TarFile, name: str, size: int, content: IO[bytes]) -> None:
    entry = tarfile.TarInfo(name)
    entry.mode, entry.size = 0o644, size
    tar.addfile(entry, content)

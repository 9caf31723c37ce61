"""A part's image: a layer of Debian's Python with the locked wheels, kept in the cache, and one of Coda's sources.

mmdebstrap unpacks Debian's packages as root, with the mirrors that apt is set up for. pip takes only wheels, only with
the hashes of the part's lock file; with PIP_NO_INDEX and PIP_FIND_LINKS it takes them from a folder, without a network.
Two builds differ only where Debian has published newer packages in between.
"""

from __future__ import annotations

import importlib.util
import json
import marshal
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from coda_lab.host.errors import LabFailure
from coda_lab.host.file_lock import locked
from coda_lab.host.paths import Settings, sources
from coda_lab.images.bill_of_materials import bill_of_materials
from coda_lab.images.oci_archive import ImageConfig, write_archive, write_layer
from coda_lab.programs.cache import key_of
from coda_lab.programs.gpu_library import write_bundle
from coda_lab.spec import Tell

PROGRAM: Final = "mmdebstrap"
DEBIAN_LIST: Final = "usr/share/coda/debian-packages"
"""In the image: the digest and the file name of each Debian package, as sha256sum writes them."""

_SUITE: Final = "bookworm"  # whose Python is the one that the lock files are made for
_PYTHON: Final = "3.11"
_RECIPE: Final = "2"  # raise it when the commands below change
_SITE: Final = f"packages/lib/python{_PYTHON}/site-packages"
_PLATFORMS: Final = ("manylinux2014_x86_64", "manylinux_2_17_x86_64", "manylinux_2_28_x86_64")
_CORE: Final = ("core/coda", "core/coda_kube")
_FRAMEWORK: Final = "framework"
_RARE: Final = "site-packages/kubernetes/"  # imported for rare kinds of login only, and 60 MB when compiled
_UNREAD: Final = ("doc", "man", "locale", "info")
_ENVIRON: Final = {
    "PATH": "/packages/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "PYTHONDONTWRITEBYTECODE": "1",
    "PYTHONUNBUFFERED": "1",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ImagePart:
    """What the image of one program holds and runs, as deploy/Dockerfile has it."""

    name: str
    folder: str
    package: str
    is_root: bool = False
    has_framework: bool = False  # what containers get that share a GPU

    @property
    def repository(self) -> str:
        """The image's name, without a tag."""
        return f"coda.local/coda-{self.name}"

    @property
    def config(self) -> ImageConfig:
        """What a container of it runs. The user is a number, so that runAsNonRoot can be checked."""
        entrypoint = ("python", "-m", self.package)
        if self.is_root:
            return ImageConfig(entrypoint=entrypoint, environ=_ENVIRON)
        environ = {**_ENVIRON, "USER": "coda", "HOME": "/"}
        return ImageConfig(entrypoint=entrypoint, environ=environ, user="65532:65532")


AGENT: Final = ImagePart(name="agent", folder="node_agent", package="coda_agent", is_root=True, has_framework=True)
PARTS: Final = {
    part.name: part
    for part in (
        ImagePart(name="operator", folder="operator", package="coda_operator"),
        ImagePart(name="extender", folder="scheduler_extender", package="coda_extender"),
        AGENT,
    )
}


def checkout_tag() -> str:
    """Return the tag of images of this checkout: the version, the commit and what is not committed."""
    return _run([str(sources() / "deploy" / "image-tag.sh")], Settings.from_environ()).strip()


def write_image(part: ImagePart, path: Path, tag: str, settings: Settings, tell: Tell) -> str:
    """Write a part's image of this checkout as an OCI archive; return its name. Needs root and mmdebstrap.

    Beside it lies its bill of materials, `<path without suffix>.cdx.json`. Raises LabFailure with one sentence."""
    name = f"{part.repository}:{tag}"
    base = _base_layer(part, settings, tell)
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="coda-image-", dir=path.parent) as scratch:
        coda = Path(scratch) / "coda.tar"
        files = coda_files(sources(), part) | version_files(tag)
        if part.has_framework:
            write_bundle(Path(scratch) / _FRAMEWORK, settings)
            files |= _files_under(Path(scratch), _FRAMEWORK)
        write_layer(coda, files)
        unfinished = Path(scratch) / "image.tar"
        write_archive(unfinished, name, (base, coda), part.config)
        bill = bill_of_materials(name, base, site=_SITE, debian_list=DEBIAN_LIST)
        path.with_suffix(".cdx.json").write_text(json.dumps(bill, indent=1) + "\n")
        unfinished.replace(path)
    return name


def coda_files(root: Path, part: ImagePart) -> dict[str, bytes]:
    """Return what a part's image holds of the sources at `root`, by path: all of its packages, as the Dockerfile copies
    them, and the compiled form of modules where this Python is of the image's version."""
    files: dict[str, bytes] = {}
    for folder in (*_CORE, f"{part.folder}/{part.package}"):
        package = root / folder
        for path in sorted(package.rglob("*")):
            if "__pycache__" in path.parts or not path.is_file():
                continue
            inside = f"{_SITE}/{path.relative_to(package.parent)}"
            files[inside] = path.read_bytes()
            if path.suffix == ".py" and sys.version_info[:2] == tuple(map(int, _PYTHON.split("."))):
                folder_of, _, module = inside.rpartition("/")
                compiled = f"{folder_of}/__pycache__/{module.removesuffix('.py')}.cpython-311.pyc"
                files[compiled] = _compiled(files[inside], f"/{inside}")
    return files


def version_files(tag: str) -> dict[str, bytes]:
    """Return what tells a program in the image its version: the tag, as packages write versions."""
    number, _, build = tag.partition("-")
    version = f"{number}+{build.replace('-', '.')}" if build else number
    text = f"Metadata-Version: 2.1\nName: coda\nVersion: {version}\n"
    return {f"{_SITE}/coda-{version}.dist-info/METADATA": text.encode()}


def _files_under(root: Path, folder: str) -> dict[str, bytes]:
    return {
        str(path.relative_to(root)): path.read_bytes() for path in sorted((root / folder).rglob("*")) if path.is_file()
    }


def _compiled(source: bytes, path: str) -> bytes:
    """A .pyc that is never compared with its source (PEP 552, unchecked hash)."""
    code = marshal.dumps(compile(source, path, "exec", dont_inherit=True))
    return importlib.util.MAGIC_NUMBER + (0b01).to_bytes(4, "little") + importlib.util.source_hash(source) + code


def _base_layer(part: ImagePart, settings: Settings, tell: Tell) -> Path:
    lock = sources() / part.folder / "requirements.lock"
    layer = settings.cache / f"{part.name}-image" / f"{key_of(_RECIPE, (lock,))}.tar"
    layer.parent.mkdir(parents=True, exist_ok=True)
    with locked(layer.with_suffix(".lock"), wait=True):
        if not layer.exists():
            what = "Debian's Python and the locked wheels, once per lock file (a minute)"
            tell(f"Making the image of the {part.name}: {what}.")
            with tempfile.TemporaryDirectory(prefix="coda-image-", dir=layer.parent) as scratch:
                packages = Path(scratch) / "packages"
                _install_wheels(packages, lock, settings)
                unfinished = Path(scratch) / "base.tar"
                _unpack_debian(unfinished, packages, settings)
                unfinished.replace(layer)
    return layer


def _install_wheels(packages: Path, lock: Path, settings: Settings) -> None:
    """A virtual environment of Debian's Python. Made by hand: this Python may be another one."""
    site = packages / "lib" / f"python{_PYTHON}" / "site-packages"
    site.mkdir(parents=True)
    (packages / "bin").mkdir()
    for name in ("python", "python3"):
        (packages / "bin" / name).symlink_to(f"/usr/bin/python{_PYTHON}")
    (packages / "pyvenv.cfg").write_text("home = /usr/bin\ninclude-system-site-packages = false\n")
    platforms = [word for name in _PLATFORMS for word in ("--platform", name)]
    strict = ["--no-deps", "--only-binary", ":all:", "--require-hashes", "--no-compile", "--quiet"]
    target = ["--implementation", "cp", "--python-version", _PYTHON, "--target", str(site)]
    pip = [sys.executable, "-m", "pip", "install", "--disable-pip-version-check", "--no-warn-script-location"]
    _run([*pip, *strict, *target, *platforms, "--requirement", str(lock)], settings)


def _unpack_debian(layer: Path, packages: Path, settings: Settings) -> None:
    if os.geteuid() != 0:
        raise LabFailure("The images are made of Debian's packages by mmdebstrap, which needs root here.")
    list_folder = DEBIAN_LIST.rpartition("/")[0]
    folders = f"/packages/lib /usr/lib/python{_PYTHON}"
    compiling = f"python{_PYTHON} -m compileall -q -x '{_RARE}' --invalidation-mode unchecked-hash {folders}"
    command = [
        *(PROGRAM, "--variant=extract", "--mode=root", "--skip=check/empty", "--quiet", "--format=tar"),
        f"--include=python{_PYTHON},libpython{_PYTHON}-stdlib,libstdc++6,ca-certificates",
        *(f"--dpkgopt=path-exclude=/usr/share/{name}/*" for name in _UNREAD),
        f"--extract-hook=copy-in {packages} /",
        f'--extract-hook=mkdir -p "$1/{list_folder}"',
        f'--extract-hook=cd "$1/var/cache/apt/archives"; sha256sum *.deb > "$1/{DEBIAN_LIST}"',
        f'--extract-hook=chroot "$1" {compiling}',
        *(_SUITE, str(layer)),
    ]
    _run(command, settings, SOURCE_DATE_EPOCH="0")


def _run(command: Sequence[str], settings: Settings, **more: str) -> str:
    try:
        ended = subprocess.run(command, capture_output=True, text=True, check=False, env={**settings.environ, **more})
    except FileNotFoundError:
        raise LabFailure(f"The images need {command[0]}: install it (Debian: apt-get install {PROGRAM}).") from None
    if ended.returncode != 0:
        raise LabFailure(f"{command[0]} failed: {ended.stderr.strip()[-500:]}")
    return ended.stdout

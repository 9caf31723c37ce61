"""What a real node is made of, made once per machine into the user's cache: kernel, programs, container images.

Debian's packages give the kernel, qemu, runc and busybox; containerd, the network plug-ins and the kubelet are built
from their Go modules, and two small programs from this repository."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from coda_lab.emulators.nvml.library import build
from coda_lab.host.errors import LabFailure
from coda_lab.host.file_lock import locked
from coda_lab.host.paths import Settings, node_sources
from coda_lab.programs.cache import built, key_of
from coda_lab.programs.go_build import BuildProgress, Recipe, kubernetes_version, pinned_version
from coda_lab.programs.go_toolchain import version_from_text
from coda_lab.programs.progress import BuildDisplay
from coda_lab.realnode import images, kernel
from coda_lab.realnode.kernel import Kernel
from coda_lab.spec import Tell

QEMU = "qemu-system-x86_64"
_CONTAINERD = "github.com/containerd/containerd/v2"
_CNI = "github.com/containernetworking/plugins"
_CNI_PLUGINS = ("plugins/main/bridge", "plugins/main/loopback", "plugins/ipam/host-local")


@dataclass(frozen=True, slots=True, kw_only=True)
class MachinePieces:
    """The files to boot a machine: enough for `run_in_vm`."""

    qemu: Path
    kernel: Kernel
    busybox: Path
    guest: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class NodePieces:
    """The files to make a Kubernetes node of the machine. `runtime`: the folder of containerd and the network
    plug-ins. `nvml`: the emulated library of the GPU driver.
    """

    machine: MachinePieces
    runc: Path
    runtime: Path
    kubelet: Path
    image_archives: tuple[Path, ...]
    nvml: Path


def ensure_machine(settings: Settings, tell: Tell) -> MachinePieces:
    """What booting takes, made first if need be. Raises LabFailure with one sentence."""
    qemu, busybox = program(QEMU, settings), program("busybox", settings)
    guest = ensure_guest(settings)
    return MachinePieces(qemu=qemu, kernel=kernel.ensure(settings, tell), busybox=busybox, guest=guest)


def ensure_guest(settings: Settings) -> Path:
    """The program that runs inside the machine, built first if need be. Raises LabFailure with one sentence."""
    return _built(_guest_recipe(), settings) / "guest"


def ensure_node(settings: Settings, tell: Tell) -> NodePieces:
    """All of it, made first if need be. Raises LabFailure with one sentence."""
    machine = ensure_machine(settings, tell)
    return NodePieces(
        machine=machine,
        runc=program("runc", settings),
        runtime=_built(_runtime_recipe(), settings),
        kubelet=_built(_kubelet_recipe(), settings) / "kubelet",
        image_archives=_images(settings, machine.busybox, tell),
        nvml=build(settings.cache),
    )


def missing_programs(settings: Settings) -> tuple[str, ...]:
    """Programs from Debian's packages that are not on this machine."""
    return tuple(name for name in kernel.PACKAGE_BY_PROGRAM if _which(name, settings) is None)


def program(name: str, settings: Settings) -> Path:
    """Where the machine has it. Raises LabFailure with the package to install."""
    found = _which(name, settings)
    if found is None:
        raise LabFailure(
            f"The real node needs {name}, which this machine does not have: `make node` installs Debian's package "
            f"{kernel.PACKAGE_BY_PROGRAM[name]} (as root)."
        )
    return Path(found)


def _which(name: str, settings: Settings) -> str | None:
    return shutil.which(name, path=f"{settings.environ.get('PATH', '')}:/usr/sbin:/sbin")


def _built(recipe: Recipe, settings: Settings) -> Path:
    sources = sorted(path for path in recipe.module.iterdir() if path.suffix in (".go", ".mod", ".sum"))
    with BuildDisplay(recipe) as display:
        tell: Callable[[BuildProgress], None] = display.show
        return built(recipe, key_of(_version_of(recipe), sources), settings, tell)


def _version_of(recipe: Recipe) -> str:
    pins = {"kubelet": "k8s.io/kubernetes", "containerd": _CONTAINERD, "guest": "k8s.io/kubelet"}
    return pinned_version(recipe.module, pins[recipe.program])


def _kubelet_recipe() -> Recipe:
    module = node_sources() / "kubelet"
    version = kubernetes_version(module)
    major, minor, *_ = version_from_text(version)
    names = {"gitVersion": version, "gitMajor": str(major), "gitMinor": str(minor)}
    flags = (f"-X k8s.io/component-base/version.{name}={value}" for name, value in names.items())
    return Recipe(
        program="kubelet",
        module=module,
        package=".",
        linker_flags=" ".join(["-s", "-w", *flags]),
        title="the kubelet",
        announcement="Building the kubelet: once per machine and version, about 5 minutes on 2 cores.",
        packages_cold=1560,  # measured with 1.36.3
        seconds_cold=300.0,
    )


def _runtime_recipe() -> Recipe:
    return Recipe(
        program="containerd",
        module=node_sources() / "runtime",
        package=f"{_CONTAINERD}/cmd/containerd",
        beside=(
            f"{_CONTAINERD}/cmd/containerd-shim-runc-v2",
            f"{_CONTAINERD}/cmd/ctr",
            *(f"{_CNI}/{plugin}" for plugin in _CNI_PLUGINS),
        ),
        tags=("no_btrfs", "no_zfs", "no_devmapper"),  # snapshotters that need C libraries or more of the kernel
        linker_flags="-s -w",
        title="containerd",
        announcement="Building containerd and the network plug-ins: once per machine and version, about 3 minutes.",
        packages_cold=900,  # measured with 2.4.2
        seconds_cold=180.0,
    )


def _guest_recipe() -> Recipe:
    return Recipe(
        program="guest",
        module=node_sources() / "guest",
        package=".",
        linker_flags="-s -w",
        title="the program inside the virtual machine",
        announcement="Building the program inside the virtual machine: once per machine and version, under a minute.",
        packages_cold=230,
        seconds_cold=50.0,
    )


def _images(settings: Settings, busybox: Path, tell: Tell) -> tuple[Path, ...]:
    source = node_sources() / "pause.c"
    folder = settings.cache / "node-images" / key_of("1", (source, busybox))
    archives = (folder / "pause.tar", folder / "busybox.tar")
    with locked(folder.with_name(f"{folder.name}.lock"), wait=True):
        if not all(path.exists() for path in archives):
            tell("Making the container images pause and busybox.")
            folder.mkdir(parents=True, exist_ok=True)
            program_file = folder / "pause"
            _run(
                [str(program("gcc", settings)), "-Os", "-s", "-static", "-o", str(program_file), str(source)], settings
            )
            _write(archives[0], images.pause_image(program_file.read_bytes()))
            applets = _run([str(busybox), "--list"], settings).split()
            _write(archives[1], images.busybox_image(busybox.read_bytes(), applets))
    return archives


def _write(path: Path, content: bytes) -> None:
    unfinished = path.with_suffix(".unfinished")
    unfinished.write_bytes(content)
    unfinished.replace(path)


def _run(command: list[str], settings: Settings) -> str:
    ended = subprocess.run(command, capture_output=True, text=True, check=False, env=dict(settings.environ))
    if ended.returncode != 0:
        raise LabFailure(f"{command[0]} failed: {ended.stderr.strip()[-300:]}")
    return ended.stdout

"""libcodagpu.so: what it is built of, and what it does to programs in C over make-believe CUDA."""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import subprocess
import threading
import time
from pathlib import Path

import pytest

from coda_lab.emulators.cuda import GpuFile, build_runtime
from coda_lab.host.paths import Settings
from coda_lab.programs.gpu_library import PROCESSORS, build, ensure, source_folder
from tests.lengths import LONG

HARNESS = Path(__file__).with_name("harness.c")
CHECKS = ("limits", "devices", "random", "threads", "suspended", "held", "forked", "capture")
MUSL = (
    "__errno_location clock_gettime close connect dl_iterate_phdr dlopen dlsym dprintf free getenv malloc memcpy "
    "memset nanosleep poll pthread_mutex_init pthread_mutex_lock pthread_mutex_unlock readlink recv send setenv "
    "shutdown snprintf socket strchr strcmp strcpy strlen strncmp strrchr strstr strtoull"
)
"""Of musl 1.2.3, what may be needed."""

SANITIZERS = ("address,undefined", "thread")


def said(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize("processor", PROCESSORS)
def test_it_needs_nothing_newer_than_glibc_2_17(processor: str) -> None:
    library = str(ensure(Settings.from_environ(), processor))
    versions = {
        tuple(map(int, one.split("."))) for one in re.findall(r"GLIBC_([\d.]+)", said("readelf", "-V", library))
    }
    assert versions
    assert max(versions) <= (2, 17)


@pytest.mark.parametrize("processor", PROCESSORS)
def test_programs_of_alpine_start_with_it(processor: str) -> None:
    """Musl's loader ends a program that needs a library or a name which it does not have."""
    library = str(ensure(Settings.from_environ(), processor))
    needed = set(re.findall(r"NEEDED.*\[(.*)\]", said("readelf", "-d", library)))
    assert {name.split(".")[0] for name in needed} <= {"libc", "libdl", "libpthread"}  # what musl takes for itself
    undefined = [line.split()[-2:] for line in said("nm", "-D", "--undefined-only", library).splitlines()]
    names = {name.split("@")[0] for kind, name in undefined if kind == "U"}
    assert names <= set(MUSL.split())


def test_it_defines_only_cudas_names_and_its_own(library: Path) -> None:
    names = {line.split()[-1] for line in said("nm", "-D", "--defined-only", str(library)).splitlines()}
    assert {"cudaMalloc", "cudaFree", "cudaMemGetInfo", "cudaLaunchKernel", "__cudaLaunchKernel"} <= names
    assert [name for name in names if not re.match(r"(cuda|__cudaLaunch|coda_)", name)] == []


@pytest.mark.skipif(not LONG, reason="compiles twice from nothing, 16 s each: make verify")
def test_the_same_sources_give_the_same_bytes(tmp_path: Path, library: Path) -> None:
    built = []
    for name in ("one", "another-folder"):
        folder = tmp_path / name
        folder.mkdir()
        built.append(build(folder, library.parent.name, zig_cache=folder / "zig").read_bytes())
    assert built[0] == built[1] == library.read_bytes()


def test_no_path_of_this_machine_is_in_it(library: Path) -> None:
    assert str(source_folder()).encode() not in library.read_bytes()


class Program:
    """The harness, compiled with a sanitizer, or against the library as users get it."""

    def __init__(self, folder: Path, sanitizer: str | None, library: Path) -> None:
        self.runtime = build_runtime(Settings.from_environ().cache)
        self.path = folder / "harness"
        self.folder = folder
        self.library = library
        units = sorted(map(str, source_folder().glob("*.c"))) if sanitizer else [f"-L{library.parent}", "-lcodagpu"]
        flags = ["-g", "-O1", f"-fsanitize={sanitizer}"] if sanitizer else ["-O2"]
        command = ["gcc", "-std=gnu11", *flags, f"-I{source_folder()}", str(HARNESS), *units]
        command += [f"-L{self.runtime}", "-lcudart", "-lpthread", "-ldl", "-o", str(self.path)]
        built = subprocess.run(command, capture_output=True, text=True, check=False)
        assert built.returncode == 0, built.stderr

    def says(self, *words: str, gpus: GpuFile, **more: str) -> str:
        environ = {
            **gpus.environment(),
            **more,
            "LD_LIBRARY_PATH": os.pathsep.join([str(self.library.parent), str(self.runtime)]),
            "ASAN_OPTIONS": "detect_leaks=0",  # the harness lets memory go at its end
            "TSAN_OPTIONS": "halt_on_error=1",
        }
        ended = subprocess.run(
            [self.path, *words], env=environ, capture_output=True, text=True, check=False, timeout=120
        )
        assert ended.returncode == 0, ended.stderr
        return ended.stdout.strip()


@pytest.fixture(scope="module", params=[None, *SANITIZERS], ids=["as built", "address", "thread"])
def program(
    request: pytest.FixtureRequest, needs_gcc: None, library: Path, tmp_path_factory: pytest.TempPathFactory
) -> Program:
    return Program(tmp_path_factory.mktemp("harness"), request.param, library)


@pytest.mark.parametrize("check", CHECKS)
def test_a_program_in_c(program: Program, check: str, tmp_path: Path) -> None:
    assert program.says(check, gpus=GpuFile(path=tmp_path / "gpu", gpus=2)) == "ok"


def test_without_host_memory_a_request_fails_and_nothing_is_counted(program: Program, tmp_path: Path) -> None:
    assert program.says("host_exhausted", gpus=GpuFile(path=tmp_path / "gpu", host_bytes=10_000_000)) == "ok"


class Agent:
    """Answers each refusal with these words, one by one, and hears when its connection ends.

    `crowd_s`: for so long others keep its queue full."""

    def __init__(self, path: Path, *waits: bool, crowd_s: float = 0.0) -> None:
        self.path, self._waits, self._crowd_s = path, waits, crowd_s
        self.asked: list[bytes] = []
        self.open_s: list[float] = []  # how long each connection went on after the last answer
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.bind(str(path))
        self._listener.listen(0 if crowd_s else 128)
        self._is_closed = threading.Event()
        self._crowd = self._fill_queue() if crowd_s else []
        threading.Thread(target=self._serve, daemon=True).start()

    def _fill_queue(self) -> list[socket.socket]:
        crowd = []
        with contextlib.suppress(BlockingIOError):
            while True:
                crowd.append(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK))
                crowd[-1].connect(str(self.path))
        return crowd

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            self._is_closed.wait(self._crowd_s)
            for one in self._crowd[:-1]:  # the last one found the queue full
                self._listener.accept()[0].close()
                one.close()
            while True:
                with self._listener.accept()[0] as peer:
                    self.asked.append(peer.recv(4096))
                    for waits in self._waits:
                        peer.send(json.dumps({"v": 1, "type": "answer", "wait": waits}, separators=(",", ":")).encode())
                        time.sleep(0.3)
                    began_s = time.monotonic()
                    assert peer.recv(4096) == b""
                    self.open_s.append(time.monotonic() - began_s)

    def close(self) -> None:
        self._is_closed.set()
        for one in (self._listener, *self._crowd):
            one.close()


@pytest.mark.parametrize(
    ("waits", "asked"),
    [
        pytest.param((True, True, False), 1, id="after a wait in vain nobody is asked for a while"),
        pytest.param((False,), 2, id="else at each second request of one size"),
    ],
)
def test_a_job_that_has_its_gpu_asks_for_more_as_often_as_makes_sense(
    program: Program, waits: tuple[bool, ...], asked: int, tmp_path: Path
) -> None:
    agent = Agent(tmp_path / "socket", *waits)
    assert program.says("asks", gpus=GpuFile(path=tmp_path / "gpu"), CODA_SOCKET=str(agent.path)) == "ok"
    agent.close()
    assert len(agent.asked) == asked
    assert json.loads(agent.asked[0])["bytes"] == 700 << 20
    assert max(agent.open_s) < 2  # though a process that was forked meanwhile lives on


def test_a_job_asks_again_while_the_agents_queue_is_full(program: Program, tmp_path: Path) -> None:
    """Any pod may fill it: whoever connects without waiting is then told to try again."""
    agent = Agent(tmp_path / "socket", False, crowd_s=1.5)
    assert program.says("asks", gpus=GpuFile(path=tmp_path / "gpu"), CODA_SOCKET=str(agent.path)) == "ok"
    agent.close()
    assert len(agent.asked) == 2


def test_a_job_does_not_ask_for_ever_where_the_agents_queue_stays_full(program: Program, tmp_path: Path) -> None:
    agent = Agent(tmp_path / "socket", False, crowd_s=60.0)
    began_s = time.monotonic()
    assert program.says("asks", gpus=GpuFile(path=tmp_path / "gpu"), CODA_SOCKET=str(agent.path)) == "ok"
    assert 5 <= time.monotonic() - began_s < 10  # only once: then nobody is asked for a while
    agent.close()
    assert agent.asked == []


def test_paced_kernels_take_their_share(needs_gcc: None, library: Path, tmp_path: Path) -> None:
    """Measured: 75, 46, 19 and 4.5 % at shares of 80, 50, 20 and 5 %. On a busy machine everything is slower."""
    program = Program(tmp_path, None, library)
    gpus = GpuFile(path=tmp_path / "gpu", kernel_us=1000)
    speeds = [float(program.says("speed", str(share), gpus=gpus)) for share in (1000, 500, 200)]
    assert 0.25 < speeds[1] / speeds[0] < 0.65
    assert 0.08 < speeds[2] / speeds[0] < 0.35


def test_a_kernel_that_waits_for_a_later_one_holds_the_program_up_a_few_times(
    needs_gcc: None, library: Path, tmp_path: Path
) -> None:
    """Each launch would else wait in vain."""
    program = Program(tmp_path, None, library)
    assert program.says("endless_kernel", gpus=GpuFile(path=tmp_path / "gpu", kernel_us=3_600_000_000)) == "ok"
    assert program.says("late_endless_kernel", gpus=GpuFile(path=tmp_path / "late", kernel_us=50_000)) == "ok"

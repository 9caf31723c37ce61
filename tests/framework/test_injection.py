"""How the Python half gets into a process, and that a script never suffers from it. A fake torch is enough."""

from __future__ import annotations

import ast
import importlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from coda_lab.programs.gpu_library import python_folder

WHERE = "import sys; print([type(one).__name__ for one in sys.meta_path][0]); "


@pytest.fixture
def environ(library: Path, tmp_path: Path) -> dict[str, str]:
    return {
        "PATH": os.environ["PATH"],
        "LD_PRELOAD": str(library),
        "CODA_PYTHON": str(python_folder()),
        "CODA_LIBRARY": str(library),
        "CODA_SOCKET": str(tmp_path / "nobody.sock"),
    }


def run(environ: dict[str, str], *words: str) -> tuple[str, str]:
    """What a Python process prints, and its stderr. It must end well."""
    ended = subprocess.run(
        [sys.executable, *words], env=environ, capture_output=True, text=True, check=False, timeout=60
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout.strip(), ended.stderr.strip()


def test_it_waits_for_torch_and_imports_nothing_itself(environ: dict[str, str]) -> None:
    script = WHERE + "print('torch' in sys.modules, 'json' in sys.modules, 'socket' in sys.modules)"
    assert run(environ, "-c", script) == ("_TorchFinder\nFalse False False", "")


def test_the_images_own_paths_stay(environ: dict[str, str]) -> None:
    told, _ = run(environ | {"PYTHONPATH": "/opt/theirs"}, "-c", "import sys; print(sys.path[1:3])")
    assert told == str([str(python_folder()), "/opt/theirs"])


def test_processes_that_it_starts_have_it_once(environ: dict[str, str]) -> None:
    child = "import os; print(os.environ['PYTHONPATH'])"
    script = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"
    assert run(environ, "-c", script) == (str(python_folder()), "")


def test_the_sitecustomize_that_it_hides_runs(environ: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("print('theirs')\nMARK = 1\n")
    told = run(environ | {"PYTHONPATH": str(tmp_path)}, "-c", WHERE + "import sitecustomize; print(sitecustomize.MARK)")
    assert told == ("theirs\n_TorchFinder\n1", "")


RUNS_THE_NEXT = """
import os, sys
from importlib.machinery import PathFinder
from importlib.util import module_from_spec
here = os.path.dirname(os.path.abspath(__file__))
spec = PathFinder.find_spec("sitecustomize", [path for path in sys.path if path != here])
spec.loader.exec_module(module_from_spec(spec))
print("theirs")
"""
IMPORTS_THE_NEXT = """
import os, sys
here = os.path.dirname(os.path.abspath(__file__))
at = sys.path.index(here)
del sys.path[at], sys.modules["sitecustomize"]
import sitecustomize
sys.path.insert(at, here)
print("theirs")
"""


@pytest.mark.parametrize(
    "agent", [pytest.param(RUNS_THE_NEXT, id="New Relic"), pytest.param(IMPORTS_THE_NEXT, id="ddtrace, AppDynamics")]
)
def test_another_agent_that_enters_likewise_runs_once_and_so_does_it(
    environ: dict[str, str], agent: str, tmp_path: Path
) -> None:
    """Each of the two runs the next `sitecustomize`, and so the other. The user's comes after them."""
    (tmp_path / "sitecustomize.py").write_text(agent)
    (tmp_path / "users").mkdir()
    (tmp_path / "users" / "sitecustomize.py").write_text("print('users')")
    script = "import sys; print([type(one).__name__ for one in sys.meta_path].count('_TorchFinder'))"
    told = run(environ | {"PYTHONPATH": f"{tmp_path}:{tmp_path / 'users'}"}, "-c", script)
    assert told == ("users\ntheirs\n1", "")


def test_an_isolated_python_runs_without_it(environ: dict[str, str]) -> None:
    told, errors = run(environ, "-I", "-c", WHERE + "import ctypes; print(hasattr(ctypes.CDLL(None), 'coda_stats'))")
    assert "TorchFinder" not in told
    assert told.endswith("True")
    assert errors == ""


@pytest.mark.parametrize("missing", ["CODA_SOCKET", "CODA_PYTHON"])
def test_without_its_variables_it_stays_out(environ: dict[str, str], missing: str) -> None:
    del environ[missing]
    told, errors = run(environ, "-c", WHERE)
    assert "TorchFinder" not in told
    assert errors == ""


@pytest.mark.parametrize(
    "library",
    [pytest.param("", id="no library"), pytest.param("/nowhere/libcodagpu.so", id="a library that is gone")],
    indirect=False,
)
def test_a_torch_that_it_does_not_know_is_imported_all_the_same(library: str, tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("__version__ = '0.1'\n")
    environ = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": f"{python_folder()}:{tmp_path}",
        "CODA_SOCKET": "/nowhere/agent.sock",
        "CODA_LIBRARY": library,
    }
    told, errors = run(environ, "-c", "import torch; print(torch.__version__)")
    assert told == "0.1"
    assert errors.startswith("coda: this process is not controlled: ModuleNotFoundError")
    assert len(errors.splitlines()) == 1


def test_asking_whether_torch_is_there_takes_no_control_away(environ: dict[str, str], tmp_path: Path) -> None:
    """As transformers, accelerate and datasets do before they import it."""
    (tmp_path / "torch.py").write_text("import os\nprint(os.environ['PYTORCH_CUDA_ALLOC_CONF'] == '')\n")
    script = "import importlib.util as u; print(u.find_spec('torch').name, u.find_spec('torch').name); import torch"
    settings = {"PYTHONPATH": str(tmp_path), "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True", "CODA_SHARE": "50"}
    told, _ = run(environ | settings, "-c", script)
    assert told == "torch torch\nTrue"


def test_a_torch_that_cannot_be_imported_fails_as_without_it(environ: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise ImportError('libcublas.so.13 is missing')\n")
    script = "try:\n    import torch\nexcept ImportError as error:\n    print(error)"
    assert run(environ | {"PYTHONPATH": str(tmp_path)}, "-c", script) == ("libcublas.so.13 is missing", "")


BYPASSES = (
    "expandable_segments:True,roundup_power2_divisions:[256:1,512:2],backend:cudaMallocAsync,max_split_size_mb:64"
)


@pytest.mark.parametrize(
    "of_a_guest",
    [
        pytest.param({"CODA_SHARE": "50"}, id="a guest"),
        pytest.param({"CODA_HOST_RESERVE": "1000"}, id="a job that asks for host memory"),
    ],
)
def test_allocator_settings_that_go_round_cuda_malloc_are_dropped_aloud(
    environ: dict[str, str], of_a_guest: dict[str, str], tmp_path: Path
) -> None:
    told, errors = run(settings_seen_by_torch(environ, BYPASSES, tmp_path) | of_a_guest, "-c", "import torch")
    assert told == "roundup_power2_divisions:[256:1,512:2],max_split_size_mb:64"
    dropped = "expandable_segments:True,backend:cudaMallocAsync"
    assert [line for line in errors.splitlines() if "ALLOC_CONF" in line] == [
        f"coda: PYTORCH_CUDA_ALLOC_CONF counts without {dropped} here: memory past cudaMalloc cannot lie in host memory"
    ]


def test_a_job_that_nobody_limits_keeps_its_allocator_settings(environ: dict[str, str], tmp_path: Path) -> None:
    told, errors = run(settings_seen_by_torch(environ, BYPASSES, tmp_path), "-c", "import torch")
    assert told == BYPASSES
    assert "ALLOC_CONF" not in errors


def test_a_guest_without_such_settings_hears_nothing_of_them(environ: dict[str, str], tmp_path: Path) -> None:
    plain = settings_seen_by_torch(environ, "max_split_size_mb:64, garbage_collection_threshold:0.8", tmp_path)
    told, errors = run(plain | {"CODA_SHARE": "50"}, "-c", "import torch")
    assert told == "max_split_size_mb:64, garbage_collection_threshold:0.8"
    assert "ALLOC_CONF" not in errors


def settings_seen_by_torch(environ: dict[str, str], settings: str, folder: Path) -> dict[str, str]:
    """The environment of a process whose torch prints its allocator's settings."""
    (folder / "torch.py").write_text("import os\nprint(os.environ['PYTORCH_CUDA_ALLOC_CONF'])\n")
    return environ | {"PYTHONPATH": str(folder), "PYTORCH_CUDA_ALLOC_CONF": settings}


def test_it_is_python_3_8() -> None:
    for path in python_folder().rglob("*.py"):
        ast.parse(path.read_text(), feature_version=(3, 8))
    ast.parse((python_folder() / "sitecustomize.py").read_text(), feature_version=(3, 4))


def test_a_share_that_makes_no_sense_counts_as_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is the container's own."""
    monkeypatch.syspath_prepend(str(python_folder()))
    first_order = importlib.import_module("coda_torch.orders").first_order
    assert [first_order(share) for share in ("", "0", "1000", "-5", "5.5", "50\n", "9" * 5000)] == [None] * 7
    assert (first_order("50").share, first_order("50").guest, first_order("50").hold_s) == (50, True, 0.0)


CAPTURING = """
import sys
sys.path.insert(0, {folder!r})
from coda_torch.memory import Memory

class Cuda:
    refuses = True
    emptied = 0
    def empty_cache(self):
        if self.refuses:
            raise RuntimeError("captures_underway.empty() INTERNAL ASSERT FAILED at CUDACachingAllocator.cpp")
        Cuda.emptied += 1
    is_current_stream_capturing = lambda self: False
    is_initialized = lambda self: True
    device_count = lambda self: 1
    set_device = lambda self, device: None

class Torch:
    cuda = Cuda()
    class _C:
        _cuda_memoryStats = lambda device: {{"reserved_bytes": {{"all": {{"current": 5}}}}}}

memory = Memory(None, Torch)
memory.begin_to_move()
while_recording = memory.at_boundary(is_step=True)
Cuda.refuses = False
print(while_recording, memory.at_boundary(is_step=True), memory.at_boundary(is_step=True), Cuda.emptied)
"""


def test_while_a_graph_is_recorded_the_cache_stays_as_it_is(environ: dict[str, str]) -> None:
    """Torch refuses in every thread then. That is no fault of ours, and the next boundaries empty the cache."""
    assert run(environ, "-c", CAPTURING.format(folder=str(python_folder()))) == ("False False True 2", "")

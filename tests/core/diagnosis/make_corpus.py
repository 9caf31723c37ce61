"""Runs the programs of `programs.toml` and keeps what they print.

`python -m tests.core.diagnosis.make_corpus [NAME ...]`; `programs.toml` says what it needs.

Every log is of a program that failed for real on this machine. Paths of the machine are taken out.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

HERE = Path(__file__).parent
LIMIT_S = 120
PYTHONS = ("PYJAX", "PYOLD", "PY27", "PY36", "PY313")  # CODA_CORPUS_PYOLD and so on say where they are


def main(names: list[str]) -> None:
    programs = tomllib.loads((HERE / "programs.toml").read_text())
    for name, program in programs.items():
        if not names or name in names:
            code, log = run(program["run"])
            (HERE / "corpus" / f"{name}.log").write_text(f"{code}\n{log}")
            sys.stdout.write(f"{name}: exit code {code}, {len(log)} characters\n")


def run(command: str) -> tuple[int, str]:
    """Run a command in an empty folder of its own; return its exit code as a container's, and what it printed."""
    python = os.environ.get("CODA_CORPUS_PYTHON", sys.executable)
    with tempfile.TemporaryDirectory(prefix="coda-corpus-") as folder:
        Path(folder).chmod(0o755)
        torchrun = f"{python} -m torch.distributed.run --rdzv-backend c10d --rdzv-endpoint localhost:0"
        rust = os.environ.get("RUSTUP_HOME", str(Path.home() / ".rustup"))
        environment = {
            "RUSTUP_HOME": rust,
            "PATH": os.environ["PATH"],
            "HOME": folder,
            "LANG": "C.UTF-8",
            "PY": python,
            **{name: os.environ.get(f"CODA_CORPUS_{name}", python) for name in PYTHONS},
            "TORCHRUN": torchrun,
        }
        ended = subprocess.run(
            ["bash", "-c", f"ulimit -c 0; {command}"],
            cwd=folder,
            env={**environment, "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=LIMIT_S,
            check=False,
        )
        text = ended.stdout.decode("utf-8", "replace").replace(folder, "/job")
    text = (
        text.replace(str(Path(python).parents[1]), "/opt/env")
        .replace(sys.base_prefix, "/usr")
        .replace(os.uname().nodename, "node-1")
    )
    text = re.sub(r"/(?:root|tmp|home|work)/[\w./-]*", "/opt/some/path", text)
    return ended.returncode if ended.returncode >= 0 else 128 - ended.returncode, text


if __name__ == "__main__":
    main(sys.argv[1:])

"""The shell of README and of the quickstart works as it is written, on a local control plane of its own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from coda_lab.host.paths import Settings
from coda_lab.programs.control_plane import ensure_shown
from tests.docs.blocks import ROOT, blocks

BIN = Path(sys.executable).parent
BUILT_BY_MAKE = ("make kube", "make setup")
PAGES = [("docs/quickstart.md", "bash", ""), ("README.md", "", "coda local up")]
READING_S = 600  # from the start of a job to what the page does with it, for who reads every word


def shell(page: str, language: str, has: str = "") -> str:
    """All shell of a page, or of one block of it, in order; it stops at the first command that fails."""
    text = "".join(
        block.text for block in blocks() if (block.page, block.language) == (page, language) and has in block.text
    )
    assert text
    for words in BUILT_BY_MAKE:
        text = re.sub(rf"^{words}\b.*\n", "", text, flags=re.MULTILINE)
    return f"set -euo pipefail\n{text}"


def applied(text: str) -> dict[str, dict[str, Any]]:
    """The jobs that a shell applies, by name, as kubectl would get them."""
    lines = [line.split("  #")[0] for line in text.splitlines() if "kubectl apply -f " in line]
    shown = "\n".join(line.replace("kubectl apply -f ", "cat ") + "; echo ---" for line in lines)
    done = subprocess.run(["bash", "-euc", shown], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True)
    return {one["metadata"]["name"]: one["spec"] for one in yaml.safe_load_all(done.stdout) if one}


@pytest.mark.parametrize(("page", "language", "has"), PAGES)
def test_who_reads_meets_no_job_that_has_ended(page: str, language: str, has: str) -> None:
    text = shell(page, language, has)
    jobs = applied(text)
    changed = set(re.findall(r"kubectl patch tj (\S+)", text))
    assert changed
    for name in changed:
        annotations = jobs[name]["template"]["metadata"]["annotations"]
        assert float(annotations["sim.coda.scheduler/run-seconds"]) >= READING_S, name


@pytest.mark.e2e
@pytest.mark.timeout(300)
@pytest.mark.parametrize(("page", "language", "has"), PAGES)
def test_shell_works_as_it_is_written(page: str, language: str, has: str, tmp_path: Path) -> None:
    """In a cache of its own, so that it meets no cluster of the user's; what was built is the real one's."""
    real = Settings.from_environ()
    ensure_shown(real)
    cache = tmp_path / "cache"
    cache.mkdir()
    (cache / "kube").symlink_to(real.cache / "kube")
    environ = {**os.environ, "CODA_CACHE_DIR": str(cache), "PATH": f"{BIN}:{os.environ['PATH']}"}
    environ.pop("KUBECONFIG", None)
    text = shell(page, language, has).replace('"$PWD/.venv/bin:$PATH"', f"{BIN}:$PATH")
    text = text.replace("--out study", f"--out {tmp_path / 'study'}")
    try:
        done = subprocess.run(
            ["bash", "-c", text], cwd=ROOT, env=environ, capture_output=True, text=True, timeout=240, check=False
        )
    finally:
        subprocess.run([BIN / "coda", "local", "down"], env=environ, check=False, timeout=60, capture_output=True)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    assert "too-large" in done.stdout
    assert "no breach" in done.stdout
    if "simulate" in text:
        assert (tmp_path / "study" / "report.html").is_file()

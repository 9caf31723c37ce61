"""The second try of tests on control planes, with pytest itself and made-up tests."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.second_try import MOST_FAILED

ROOT = Path(__file__).parents[1]
PASSES = "def test_it():\n    pass\n"
FAILS = "def test_it():\n    raise AssertionError\n"
FAILS_ONCE = (
    "from pathlib import Path\n"
    "def test_of_the_same_module():\n    Path('runs').open('a').write('x')\n"
    "def test_it():\n    assert Path('runs').read_text() == 'xx'\n"
)


def tried(folder: Path, **text_by_module: str) -> tuple[int, str]:
    for name, text in text_by_module.items():
        (folder / f"test_{name}.py").write_text(text)
    done = subprocess.run(
        [sys.executable, "-m", "tests.second_try", "-q", "--", "."],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    return done.returncode, done.stdout


def test_a_module_runs_again_from_its_start_and_what_failed_first_is_named(tmp_path: Path) -> None:
    code, said = tried(tmp_path, once=FAILS_ONCE, good=PASSES)
    assert code == 0
    assert "==> once more, from the start of test_once.py: 1 failed" in said
    assert said.splitlines()[-1] == "==> passed at the second try: test_once.py::test_it"
    assert "2 passed" in said  # of the second try: not the other module


def test_what_fails_twice_has_failed(tmp_path: Path) -> None:
    code, said = tried(tmp_path, bad=FAILS)
    assert code == 1
    assert said.splitlines()[-1] == "==> not passed at the second try: test_bad.py::test_it"


def test_many_failures_get_no_second_try(tmp_path: Path) -> None:
    many = "".join(f"def test_{number}():\n    raise AssertionError\n" for number in range(MOST_FAILED + 1))
    assert "once more" not in tried(tmp_path, many=many)[1]


def test_many_modules_get_no_second_try(tmp_path: Path) -> None:
    code, said = tried(tmp_path, one=FAILS, two=FAILS, three=FAILS)
    assert (code, "once more" in said) == (1, False)


def test_a_virtual_machine_that_ended_gets_a_second_try(tmp_path: Path) -> None:
    ends = "import os, pytest\nfrom pathlib import Path\ndef test_it():\n    if not Path('ran').exists():\n"
    ends += "        Path('ran').touch()\n        pytest.exit('stuck', os.EX_TEMPFAIL)\n"
    code, said = tried(tmp_path, machine=ends)
    assert code == 0
    assert "==> once more: the virtual machine ended or was stuck" in said


def test_green_runs_say_nothing_more(tmp_path: Path) -> None:
    code, said = tried(tmp_path, good=PASSES)
    assert (code, "==>" in said) == (0, False)

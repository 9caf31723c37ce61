"""Runs pytest, and the modules of a few failed tests once more: `python -m tests.second_try [OPTION ...] -- PATH ...`.

For tests on real control planes: they share two cores with all else, and one of several hundred may get none for
minutes. A module runs again from its start, with a cluster of its own. What failed first is printed and named at the
end. Many failures are no accident, and get no second try. See docs/decisions/0137.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

MOST_FAILED = 3
MOST_MODULES = 2
TESTS_FAILED = 1  # pytest's exit code
CACHE = Path(".pytest_cache")


def main(argv: Sequence[str]) -> int:
    """Run the tests; pytest's exit code, of the second try if there was one."""
    if "--" not in argv:
        sys.stderr.write("usage: python -m tests.second_try [OPTION ...] -- PATH ...\n")
        return 2
    options, paths = argv[: argv.index("--")], argv[argv.index("--") + 1 :]
    cache = CACHE / f"try-{os.getpid()}"  # parts of `make test` run side by side
    code = run([*options, "--cache-clear"], paths, cache)
    failed = failed_tests(cache) if code == TESTS_FAILED else ()
    modules = sorted({name.partition("::")[0] for name in failed})
    if code == os.EX_TEMPFAIL:  # tests/realnode/ending.py
        say("once more: the virtual machine ended or was stuck")
        return run(options, paths, cache)
    if not 0 < len(failed) <= MOST_FAILED or len(modules) > MOST_MODULES:
        return code
    say(f"once more, from the start of {' and '.join(modules)}: {len(failed)} failed")
    code = run(options, modules, cache)
    say(f"{'passed' if code == 0 else 'not passed'} at the second try: {', '.join(failed)}")
    return code


def run(options: Sequence[str], paths: Sequence[str], cache: Path) -> int:
    """Run these tests; pytest's exit code."""
    command = (sys.executable, "-m", "pytest", "-o", f"cache_dir={cache}", *options, *paths)
    return subprocess.run(command, check=False).returncode


def failed_tests(cache: Path) -> tuple[str, ...]:
    """Names of what failed in the last run, in order; a module's own name if it could not be loaded."""
    try:
        return tuple(sorted(json.loads((cache / "v/cache/lastfailed").read_text())))
    except FileNotFoundError:
        return ()


def say(what: str) -> None:
    sys.stdout.write(f"==> {what}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))

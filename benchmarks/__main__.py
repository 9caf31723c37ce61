"""`python benchmarks`: every question, one after the other; one table, printed and put into docs/benchmarks.md.

Exit code 0: all answered, 1: not all (then the page stays as it is), 2: bad options, 130: interrupted.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import orjson
from rich.console import Console

from coda.errors import CodaError
from coda_lab.host.paths import Settings, kube_module
from coda_lab.programs.control_plane import ensure_shown
from coda_lab.programs.go_build import kubernetes_version
from rig.asking import positive
from rig.page import Setting, markdown, setting_here, terminal_table, with_tables
from rig.results import Answer, answer_from_json

HERE: Final = Path(__file__).resolve().parent
PAGE: Final = HERE.parent / "docs" / "benchmarks.md"
QUESTIONS: Final = (
    "throughput",
    "large_gang",
    "launch_beside",
    "first_reason",
    "reclaim",
    "filter_latency",
    "tls_cost",
    "planning_round",
    "cpu_job_rounds",
    "simulation_scale",
    "api_requests",
    "footprint",
    "finished_jobs",
    "classifying",
    "agent_cost",
    "search_on_pipelines",
    "search_on_real_signals",
)
TAKES_MINUTES: Final = frozenset({"footprint", "agent_cost"})


def main() -> int:
    """Run the questions and show what they answered."""
    options = _options()
    try:
        ensure_shown(Settings.from_environ())  # built now, not within the first measurement
        setting = setting_here(HERE.parent, kubernetes_version(kube_module()))
        answers = [answer for question in options.only if (answer := _answer(question, options)) is not None]
        complete = len(answers) == len(options.only)
        Console(width=None if sys.stdout.isatty() else 140).print(terminal_table(answers, setting))
        if options.out is not None:
            options.out.write_bytes(_json(answers, setting))
        if complete and not options.quick and tuple(options.only) == QUESTIONS:
            PAGE.write_text(with_tables(PAGE.read_text(), markdown(answers, setting)))
            print(f"written into {PAGE}")
    except CodaError as error:
        print(f"benchmarks: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("benchmarks: interrupted; the page is as it was", file=sys.stderr)
        return 130
    return 0 if complete else 1


def _answer(question: str, options: argparse.Namespace) -> Answer | None:
    """Ask one question in a process of its own; None when it fails, which it has said itself."""
    with tempfile.TemporaryDirectory(prefix="coda-bench-") as folder:
        out = Path(folder) / "answer.json"
        words = ["--out", str(out)]
        words += ["--quick"] if options.quick else []
        words += ["--pairs", str(options.pairs)] if options.pairs else []
        words += ["--minutes", str(options.minutes)] if options.minutes and question in TAKES_MINUTES else []
        print(f"==> {question}", file=sys.stderr, flush=True)
        ended = subprocess.run((sys.executable, HERE / f"{question}.py", *words), check=False)
        if ended.returncode != 0 or not out.exists():
            print(f"{question} failed with exit code {ended.returncode}", file=sys.stderr)
            return None
        return answer_from_json(out.read_bytes())


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python benchmarks", description="Measure everything that has a budget.")
    parser.add_argument("--quick", action="store_true", help="small and short: does it work at all; leaves the page")
    parser.add_argument("--pairs", type=positive, help="how often both arms run, in turns")
    parser.add_argument(
        "--minutes", type=positive, help="of watching what runs all the time: under a mild load, and the agent"
    )
    parser.add_argument("--only", type=_questions, default=QUESTIONS, help=f"some of {','.join(QUESTIONS)}")
    parser.add_argument("--out", type=Path, help="file for all answers with their detail, JSON")
    return parser.parse_args()


def _questions(text: str) -> Sequence[str]:
    asked = tuple(text.split(","))
    for question in asked:
        if question not in QUESTIONS:
            raise argparse.ArgumentTypeError(f"{question!r}: there are {', '.join(QUESTIONS)}")
    return asked


def _json(answers: Sequence[Answer], setting: Setting) -> bytes:
    return orjson.dumps({"setting": setting, "answers": answers}, option=orjson.OPT_INDENT_2) + b"\n"


if __name__ == "__main__":
    sys.exit(main())

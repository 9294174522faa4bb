"""The flags of a command line."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from rolemesh.errors import JobFileError, NameInUseError
from rolemesh_durable.unused_keys import warnings
from rolemesh_launch.command import with_free_name
from rolemesh_launch.flags import (
    Asked,
    Std,
    free_name,
    ignored,
    job_name,
    keeps_state,
    node_range,
    processes,
    signal_numbers,
    std,
    without_effect,
)
from rolemesh_launch.job import job_of


def test_numbers_of_nodes_and_processes() -> None:
    assert node_range("2") == (2, 2)
    assert node_range("1:4") == (1, 4)
    assert processes("3", 8, 0) == 3
    assert processes("auto", 8, 0) == processes("cpu", 8, 2) == 8
    assert processes("auto", 8, 2) == processes("gpu", 8, 2) == 2


@pytest.mark.parametrize("text", ["0", "4:1", "two", "1:", ":", ""])
def test_texts_that_are_no_number_of_nodes_are_refused(text: str) -> None:
    with pytest.raises(JobFileError) as refused:
        node_range(text)
    assert refused.value.where == "--nnodes"


@pytest.mark.parametrize("text", ["0", "-1", "many", "gpu"])
def test_texts_that_are_no_number_of_processes_are_refused(text: str) -> None:
    with pytest.raises(JobFileError) as refused:
        processes(text, 8, 0)
    assert refused.value.where == "--nproc-per-node"


def test_streams() -> None:
    assert std("3", "--tee") == Std(3)
    assert [std("0:1,2:3", "--tee").of(rank) for rank in range(3)] == [1, 0, 3]
    with pytest.raises(JobFileError):
        std("all", "--tee")


@pytest.mark.parametrize(
    ("target", "name"),
    [("train.py", "train"), ("a/My_Train.py", "my-train"), ("pkg.sub.train", "train"), ("/bin/true", "true")],
)
def test_a_job_is_called_as_its_script(target: str, name: str) -> None:
    assert job_name(target) == name


def test_the_job_of_a_script_is_one_that_a_file_may_say(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("")
    job = job_of(Asked("train.py", arguments=("--lr", "1"), nodes=(1, 2), per_node=2, max_restarts=1), tmp_path)
    (tmp_path / "job.yaml").write_text(job.text())
    spec = job.validate().job.spec
    assert spec.steps is None
    assert spec.roles["worker"].options["arguments"] == ["--lr", "1"]
    assert [use.use for use in spec.failover] == ["process", "node", "shrink", "job"]


def test_signals_to_handle_are_names_of_signals_that_a_process_can_handle() -> None:
    assert signal_numbers("SIGTERM, SIGUSR1") == [signal.SIGTERM, signal.SIGUSR1]
    for text in ("TERM", "SIGKILL", "SIG_DFL", ""):
        with pytest.raises(JobFileError, match="is no signal to handle"):
            signal_numbers(text)


@pytest.mark.parametrize("nodes", [(1, 1), (1, 2), (2, 2)])
@pytest.mark.parametrize("restarts", [0, 2])
@pytest.mark.parametrize("more", [{}, {"keeps_state": True}, {"hang_after_s": 60, "grace_s": 9.0}])
def test_no_key_of_a_scripts_job_is_without_effect(
    nodes: tuple[int, int], restarts: int, more: dict[str, Any], tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text("")
    asked = Asked("train.py", nodes=nodes, per_node=2, max_restarts=restarts, **more)
    assert warnings(job_of(asked, tmp_path).validate(), None) == []


def test_a_flag_without_effect_is_reported_and_an_impossible_one_is_refused() -> None:
    (one, other) = ignored({"rdzv-backend": "c10d", "node-rank": "0", "start-method": "spawn"})
    assert one.startswith("--rdzv-backend, --node-rank changes nothing: ")
    assert other.startswith("--start-method changes nothing: ")
    for flag, value in (("node-rank", "1"), ("numa-binding", "node"), ("logs-specs", "mine")):
        with pytest.raises(JobFileError) as refused:
            list(ignored({flag: value}))
        assert refused.value.where == f"--{flag}"


@pytest.mark.parametrize(
    ("given", "ray", "said"),
    [
        ({"nodes": "2"}, False, []),
        ({"nodes": "2"}, True, ["--nodes"]),
        ({"log-dir": "a"}, False, []),
        ({"log-dir": "a", "runs-dir": "a"}, False, []),
        ({"log-dir": "a", "runs-dir": "b"}, False, ["--runs-dir (or ROLEMESH_RUNS)"]),
        ({"standalone": "1", "nnodes": "1"}, False, []),
        ({"standalone": "1", "nnodes": "2"}, False, ["--nnodes"]),
        ({"run-path": "1"}, False, ["--run-path"]),
        ({"run-path": "1", "no-python": "1"}, False, ["--run-path", "--no-python"]),
        ({"tee": "3"}, False, []),
        ({"tee": "3", "detach": "1"}, False, ["--tee"]),
        ({"print-job": "1", "nodes": "2", "resume": "never"}, False, ["--nodes, --resume"]),
    ],
)
def test_a_flag_that_another_leaves_without_effect_is_said(given: dict[str, str], ray: bool, said: list[str]) -> None:
    assert [text.partition(" changes nothing: ")[0] for text in without_effect(given, ray=ray)] == said


@pytest.mark.parametrize("given", ["train.py -- --lr 1", "-- train.py --lr 1", "train.py a -- b", "train.py -- -- b"])
def test_a_script_gets_the_arguments_that_torchrun_gives_it(given: str, tmp_path: Path) -> None:
    from torch.distributed.run import parse_args

    (tmp_path / "train.py").touch()
    command = [Path(sys.executable).with_name("rolemesh"), "launch", "--print-job", *given.split()]
    shown = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    assert (
        yaml.safe_load(shown)["roles"]["worker"]["options"]["arguments"]
        == parse_args(given.split()).training_script_args
    )


def test_every_flag_of_torchrun_is_known() -> None:
    from torch.distributed.run import get_args_parser
    from typer.utils import get_params_from_function

    from rolemesh_launch.command import launch

    ours = {
        name
        for p in get_params_from_function(launch).values()
        for name in getattr(p.default, "param_decls", None) or ()
    }
    theirs = {name for action in get_args_parser()._actions for name in action.option_strings} - {"-h", "--help"}
    assert not theirs - ours


@pytest.mark.parametrize(
    ("files", "keeps"),
    [
        ({"train.py": "import torch"}, False),
        ({"train.py": "from rolemesh_launch import track"}, True),
        ({"train.py": "def f():\n    import rolemesh_launch.transformers"}, True),
        ({"train.py": "# import rolemesh_launch"}, False),
        ({"train.py": "import own", "own.py": "from rolemesh_launch import track"}, True),
        ({"train.py": "import a.b", "a/b.py": "import own", "own.py": "import train, rolemesh_launch"}, True),
        ({"train.py": "import own", "own.py": "import train"}, False),
        ({"train.py": "print 'no Python 3'"}, False),
        ({}, False),
    ],
    ids=["plain", "track", "inside", "comment", "imported", "through two", "in circles", "no Python", "no file"],
)
def test_a_script_that_keeps_its_state_is_known_by_what_it_imports(
    tmp_path: Path, files: dict[str, str], keeps: bool
) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    assert keeps_state(tmp_path / "train.py", tmp_path) is keeps


def test_a_second_job_of_a_script_takes_another_name_unless_it_was_given_one() -> None:
    asked = list[str]()

    @with_free_name
    def command(script: list[str], name: str = "", override: list[str] | None = None) -> None:
        asked.append(name)
        if len(asked) < 3:
            raise NameInUseError("a job named 'train' is running")

    command(script=["train.py"], name="", override=None)
    assert asked == ["", "train-2", "train-3"]
    for given in ({"name": "mine", "override": None}, {"name": "", "override": ["name=mine"]}):
        asked.clear()
        with pytest.raises(NameInUseError):
            command(script=["train.py"], **given)


def test_a_name_that_something_else_has_gets_a_number() -> None:
    assert free_name("train", lambda name: False) == "train"
    assert free_name("train", {"train", "train-2"}.__contains__) == "train-3"

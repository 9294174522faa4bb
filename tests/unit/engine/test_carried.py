"""Which variables of a command reach processes on other nodes."""

from __future__ import annotations

import os

import msgspec

from rolemesh_durable.carried import carried, taken_up


def test_a_job_takes_the_commands_variables_to_other_nodes_but_not_those_of_the_machine() -> None:
    ours = {"FLAG": "1", "HF_HOME": "/models", "PYTHONHASHSEED": "7", "HF_TOKEN": "secret"}
    theirs = {"PATH": "/bin", "HOME": "/me", "RAY_ADDRESS": "here", "CUDA_VISIBLE_DEVICES": "0", "SLURM_JOB_ID": "1"}
    assert carried({**ours, **theirs}) == ours


def test_relative_entries_of_pythonpath_mean_the_same_elsewhere_and_the_nodes_own_come_last() -> None:
    found = carried({"PYTHONPATH": "src:/lib"})
    assert found == {"PYTHONPATH": f"{os.getcwd()}/src:/lib"}
    assert taken_up(found, {"PYTHONPATH": "/lib:/node"}) == {"PYTHONPATH": f"{os.getcwd()}/src:/lib:/node"}
    assert taken_up({"A": "1"}, {"A": "2", "B": "3"}) == {"A": "1"}


def test_each_byte_of_a_value_reaches_other_nodes() -> None:
    ours = {"PROMPT": "caf\udce9", "NAME": "café", "PYTHONPATH": "/lib/\udcff:/é"}
    assert taken_up(msgspec.msgpack.decode(msgspec.msgpack.encode(carried(ours))), {}) == ours

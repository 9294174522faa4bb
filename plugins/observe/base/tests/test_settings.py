"""The settings that differ between the job files of two runs: YAML's own parser is the judge."""

from __future__ import annotations

from typing import Any

import yaml

from rolemesh_view.settings import Difference, differences, settings

JOB: dict[str, Any] = {
    "name": "a",
    "steps": 40,
    "roles": {
        "trainer": {"use": "fsdp", "options": {"lr": 1e-5, "betas": [0.9, 0.95], "loss": "losses:grpo"}},
        "rollout": {"use": "vllm", "options": {}, "runtime_env": {"working_dir": None, "pip": []}},
    },
    "placement": {"use": "collocation", "options": {"groups": [["rollout", "trainer"], ["reward"]]}},
    "observers": [{"use": "console", "options": {"metrics": ["reward"]}}, {"use": "plot", "options": {}}],
    "params": {"text": "with: a colon"},
}


def leaves(value: Any, path: str = "") -> set[str]:
    if isinstance(value, dict) and value:
        return set().union(*(leaves(each, f"{path}.{name}" if path else name) for name, each in value.items()))
    if isinstance(value, list) and value:
        return set().union(*(leaves(each, path) for each in value))
    return {path}


def test_each_value_of_a_job_file_has_its_path() -> None:
    found = settings(yaml.safe_dump(JOB, sort_keys=False))
    assert found.keys() == leaves(JOB)
    assert (found["roles.trainer.options.betas"], found["observers.use"]) == ("0.9, 0.95", "console, plot")
    assert found["placement.options.groups"] == "rollout, trainer, reward"


def test_only_what_differs_is_told() -> None:
    one = yaml.safe_dump(JOB, sort_keys=False)
    other = one.replace("lr: 1.0e-05", "lr: 2.0e-05").replace("use: plot", "use: wandb") + "seed: 7\n"
    assert differences(one, one) == []
    assert differences(one, other) == [
        Difference("roles.trainer.options.lr", "1.0e-05", "2.0e-05"),
        Difference("observers.use", "console, plot", "console, wandb"),
        Difference("seed", "", "7"),
    ]

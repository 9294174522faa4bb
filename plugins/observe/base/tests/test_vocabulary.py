"""Token ids get the texts of the job's model, and only from a job file that is this user's."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rolemesh_facts import RunFacts
from rolemesh_view.tokens import tokens
from rolemesh_view.vocabulary import vocabulary

WORDS = {"hello": 0, "world": 1}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    tokenizers = pytest.importorskip("tokenizers")
    model = tmp_path / "model"
    model.mkdir()
    tokenizers.Tokenizer(tokenizers.models.WordLevel(WORDS, unk_token="hello")).save(str(model / "tokenizer.json"))
    folder = tmp_path / "run"
    folder.mkdir()
    info = {"name": "r", "run_dir": str(folder), "steps": 1, "roles": {}, "operators": [], "base": str(tmp_path)}
    (folder / "run.json").write_text(json.dumps(info))
    (folder / "job.yaml").write_text("roles: {rollout: {use: vllm, options: {model: model}}}")
    return folder


def test_ids_have_the_texts_of_the_models_tokenizer(run: Path) -> None:
    columns = {"completion_ids": [1, 0], "logprobs": [-0.5, -1.0]}
    found = tokens(columns, "logprobs", vocabulary(RunFacts(run)))
    assert [token.text for token in found] == ["world", "hello"]


@pytest.mark.parametrize("job", ["", "[]", "roles: 3", "roles: {a: {options: {model: 7}}}", "roles: ["])
def test_without_a_model_there_are_ids(run: Path, job: str) -> None:
    (run / "job.yaml").write_text(job)
    assert vocabulary(RunFacts(run)) is None
    assert [token.text for token in tokens({"completion_ids": [1], "logprobs": [-0.5]}, "logprobs")] == ["1"]


def test_a_damaged_tokenizer_is_none(run: Path) -> None:
    (run.parent / "model" / "tokenizer.json").write_text("{}")
    assert vocabulary(RunFacts(run)) is None

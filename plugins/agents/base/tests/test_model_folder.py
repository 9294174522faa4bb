"""A model's folder is checked before the job starts, without transformers."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rolemesh.errors import OptionsError
from rolemesh_agents.templates import TemplateRefusedError, load_template
from rolemesh_agents.workloads.model_folder import check_model_folder

TOKENIZER = {"tokenizer.json": "{}"}


@pytest.mark.parametrize(
    "files",
    [
        {"chat_template.jinja": "x"},
        {"chat_template.json": json.dumps({"chat_template": "x"})},
        {"additional_chat_templates/tool_use.jinja": "x"},
        {"tokenizer_config.json": json.dumps({"chat_template": "x"})},
        {"tokenizer_config.json": json.dumps({"chat_template": [{"name": "default", "template": "x"}]})},
    ],
    ids=["jinja", "json", "additional", "config", "named"],
)
def test_a_template_is_found_where_transformers_looks_for_it(files: dict[str, str], tmp_path: Path) -> None:
    for name, text in (TOKENIZER | files).items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    check_model_folder(tmp_path)


@pytest.mark.parametrize(
    ("files", "what"),
    [
        (None, "does not exist"),
        ({"config.json": "{}"}, "has no tokenizer"),
        (TOKENIZER | {"tokenizer_config.json": '{"chat_template": null}'}, "has no chat template"),
        (TOKENIZER | {"tokenizer_config.json": "not JSON"}, "has no chat template"),
    ],
)
def test_a_folder_that_cannot_do_says_what_is_missing(files: dict[str, str] | None, what: str, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    if files is not None:
        folder.mkdir()
        for name, text in files.items():
            (folder / name).write_text(text)
    with pytest.raises(OptionsError, match=what):
        check_model_folder(folder)


def test_a_job_without_a_chat_template_ends_before_it_starts(agent_job: Callable[..., Any]) -> None:
    job = agent_job().set(roles__agent__options__template=None)
    done = job.run()
    assert done.returncode == 2
    assert "has no tokenizer" in done.stderr
    assert not (job.folder / "runs/talks/metrics.jsonl").exists()


def test_a_template_that_drops_messages_after_a_turn_is_refused_when_it_is_loaded(tmp_path: Path) -> None:
    from template_bench import tokenizer_of

    tokenizer = tokenizer_of("smollm2")
    kept, tokenizer.chat_template = tokenizer.chat_template, "{{ messages[0]['content'] }}"
    try:
        tokenizer.save_pretrained(tmp_path)
    finally:
        tokenizer.chat_template = kept
    with pytest.raises(TemplateRefusedError, match="leaves out messages"):
        load_template(tmp_path)

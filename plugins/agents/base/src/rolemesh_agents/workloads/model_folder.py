"""The check of a model's folder before a job starts: whether it has a tokenizer and a chat template.

It reads files only, because the driver may have no transformers. A rank tries the template itself when it starts.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rolemesh.errors import OptionsError

__all__ = ["check_model_folder"]

_TOKENIZERS = ("tokenizer.json", "tokenizer.model", "vocab.json", "tekken.json", "tokenizer_config.json")
_CONFIG = "tokenizer_config.json"


def check_model_folder(folder: Path) -> None:
    """Raise `OptionsError` unless `folder` has a tokenizer with a chat template."""
    if not folder.is_dir():
        remedy = "give the path of a Hugging Face model folder, relative to the job file"
        raise OptionsError(f"the model folder {folder} does not exist", where="model", remedy=remedy)
    if not any((folder / name).is_file() for name in _TOKENIZERS):
        remedy = "copy the tokenizer's files from the model that it was made from"
        raise OptionsError(f"the model folder {folder} has no tokenizer", where="model", remedy=remedy)
    if not _has_template(folder):
        remedy = "use an instruction-tuned model, or add chat_template.jinja"
        raise OptionsError(f"the tokenizer in {folder} has no chat template", where="model", remedy=remedy)


def _has_template(folder: Path) -> bool:
    """Look in all places from which transformers takes a template. A file that is no JSON has none."""
    if any(path.is_file() for path in folder.glob("chat_template*.jinja")):
        return True
    if any((folder / "additional_chat_templates").glob("*.jinja")):
        return True
    return any(_found(folder / name).get("chat_template") for name in (_CONFIG, "chat_template.json"))


def _found(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}

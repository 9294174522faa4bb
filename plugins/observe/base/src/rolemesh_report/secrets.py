"""A job file without its secrets. Pure."""

from __future__ import annotations

import re
from typing import Any

import yaml

from rolemesh.errors import RolemeshError
from rolemesh.job_file.places import parse_yaml
from rolemesh.runs.run import JOB_FILE

__all__ = ["LEFT_OUT", "without_secrets"]

LEFT_OUT = "(left out)"
_KEY = re.compile(
    r"(^|[_\-.])(token|secret|password|passwd|passphrase|credentials?|api_?key|access_?key|private_?key|auth|dsn)$",
    re.IGNORECASE,
)
_ALL_OF = ("env_vars", "headers", "environ")
_URL = re.compile(r"(\w+://)[^/\s@]*@")
_SHAPE = re.compile(r"\b(sk|hf|ghp|gho|github_pat|glpat|xox[bap]|AKIA)[-_]?[A-Za-z0-9_\-]{16,}")


def without_secrets(text: str) -> str:
    """Return a job file in YAML without values that are secret by their key, their form, or as part of a URL.

    Returns "" for a text that is not YAML: nothing tells its secrets.
    """
    try:
        data, _ = parse_yaml(text, JOB_FILE)
    except (RolemeshError, RecursionError, ValueError):
        return ""
    return str(yaml.safe_dump(_cleared(data), sort_keys=False, width=100, allow_unicode=True)) if data else ""


def _cleared(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _of_key(str(key), each) for key, each in value.items()}
    if isinstance(value, list):
        return [_cleared(each) for each in value]
    if isinstance(value, str):
        return _SHAPE.sub(LEFT_OUT, _URL.sub(rf"\1{LEFT_OUT}@", str(value)))
    return value


def _of_key(key: str, value: Any) -> Any:
    if key in _ALL_OF and isinstance(value, dict):
        return dict.fromkeys(value, LEFT_OUT)
    if _KEY.search(key) and value not in (None, "", False, True):
        return LEFT_OUT
    return _cleared(value)

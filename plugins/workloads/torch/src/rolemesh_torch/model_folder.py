"""A model's folder, as ``save_pretrained`` writes it, and what is wrong with it before a process loads the model: half
a download, a Git LFS pointer, a missing part. It reads headers and small files only, and imports no torch.

Source: https://github.com/huggingface/safetensors#format.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any

from rolemesh.errors import OptionsError

__all__ = ["CONFIG", "INDEX", "WEIGHTS", "config_of", "damages", "header_of", "text_config_of", "weight_files"]

CONFIG, WEIGHTS, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"
_OTHERS = ("generation_config.json", "tokenizer_config.json", "tokenizer.json", "special_tokens_map.json")
"""Files that transformers and vLLM read beside `CONFIG`, if they exist. Each is a JSON object."""
_AGAIN = "download the model again, or copy this file from another copy of it"
_POINTER = b"version https://git-lfs.github.com/spec/"
_LENGTH = 8
"""Bytes before the header of a safetensors file: the header's length, little-endian."""
_LONGEST = 100_000_000
"""Maximum number of bytes of a header that safetensors accepts."""


def config_of(folder: Path) -> dict[str, Any]:
    """Return the folder's ``config.json``. Raises `OptionsError` if it is missing or damaged."""
    return _json(folder / CONFIG)


def text_config_of(folder: Path) -> dict[str, Any]:
    """Return the part of ``config.json`` about the language model: all of it, or ``text_config`` of a model that sees.

    Raises `OptionsError` if the file is missing or damaged.
    """
    config = config_of(folder)
    part = config.get("text_config") or config
    if not isinstance(part, dict):
        raise _damage(folder / CONFIG, f"has the text_config {json.dumps(part)[:40]}, and a JSON object belongs there")
    return part


def weight_files(folder: Path) -> list[Path]:
    """Return ``model.safetensors``, or the files that ``model.safetensors.index.json`` names; empty without both.

    Other files beside them, such as ``consolidated.safetensors``, hold the weights again under other names. Raises
    `OptionsError` if the index is damaged.
    """
    if (folder / WEIGHTS).is_file():
        return [folder / WEIGHTS]
    index = folder / INDEX
    if not index.is_file():
        return []
    names = _json(index).get("weight_map")
    if not isinstance(names, dict) or not names or not all(isinstance(name, str) for name in names.values()):
        raise _damage(index, "has no weight_map, which says where each tensor is")
    return [folder / name for name in sorted(set(names.values()))]


def header_of(path: Path) -> tuple[int, dict[str, dict[str, Any]]]:
    """Return where the data of a safetensors file starts, in bytes, and each tensor's ``dtype``, ``shape`` and
    ``data_offsets`` by name.

    Raises `OptionsError` if the file is missing, is none, or has other bytes than its header says.
    """
    try:
        with path.open("rb") as file:
            begin, size = file.read(_LENGTH), path.stat().st_size
            length = int.from_bytes(begin, "little")
            text = begin + file.read(min(length, size, _LONGEST))
    except OSError as error:
        raise _unreadable(path, error) from None
    _check_begin(path, text)
    try:
        tensors: dict[str, Any] = json.loads(text[_LENGTH:])
        tensors.pop("__metadata__", None)
        for entry in tensors.values():
            str(entry["dtype"]), [int(length) for length in entry["shape"]]
        end = max((int(entry["data_offsets"][1]) for entry in tensors.values()), default=0)
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        raise _damage(path, "has no header of a safetensors file") from None
    start = _LENGTH + length
    if start + end != size:
        raise _damage(path, f"has {size:,} bytes, and its header says {start + end:,}")
    return start, tensors


def damages(folder: Path, *, weights: bool = True) -> list[OptionsError]:
    """Return an error for each damaged or missing file: the configuration, the tokenizer's files, and the weights
    unless the model starts without them. `folder` must have a ``config.json``."""
    found: list[OptionsError] = []
    files: list[Path] = []
    with _noting(found):
        text_config_of(folder)
    for path in (folder / name for name in _OTHERS if (folder / name).is_file()):
        with _noting(found):
            _check_json(path, path.stat().st_mtime_ns)
    with _noting(found):
        files = weight_files(folder) if weights else []
    for path in files:
        with _noting(found):
            header_of(path)
    return found


@contextmanager
def _noting(found: list[OptionsError]) -> Iterator[None]:
    """Add an error from inside to `found`."""
    try:
        yield
    except OptionsError as error:
        found.append(error)


@lru_cache
def _check_json(path: Path, changed_ns: int) -> None:
    """Read a file once per change: a tokenizer takes 0.1 s and more, and several roles have the same model."""
    _json(path)


def _json(path: Path) -> dict[str, Any]:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise _unreadable(path, error) from None
    _check_begin(path, data)
    try:
        found = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise _damage(path, f"is no JSON: {error}") from None
    if not isinstance(found, Mapping):
        raise _damage(path, f"holds {json.dumps(found)[:40]}, and a JSON object belongs there")
    return dict(found)


def _check_begin(path: Path, data: bytes) -> None:
    if data.startswith(_POINTER):
        raise _damage(path, "is a Git LFS pointer, not the file", f"run `git lfs pull` in {path.parent}")
    if not data:
        raise _damage(path, "is empty")


def _unreadable(path: Path, error: OSError) -> OptionsError:
    if isinstance(error, FileNotFoundError):
        return _damage(path, "is missing")
    return _damage(path, f"cannot be read: {error.strerror}", "make it a file that you may read")


def _damage(path: Path, what: str, remedy: str = _AGAIN) -> OptionsError:
    return OptionsError(f"{path} {what}", where="model", remedy=remedy)

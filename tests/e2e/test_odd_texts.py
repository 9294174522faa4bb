"""A job goes on with any text of its own code, and each verb shows the text or its escapes."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from tests.e2e.harness import Job

LONG = 1_000_000
ODD = {
    "half a pair": "a\ud800b",
    "another half": "a\udfffb",
    "pairs in the wrong order": "\udc00\ud800",
    "NUL": "a\0b",
    "newlines": "a\nb\r\u2028c",
    "escapes": "\x1b[31mred\x1b]0;title\x07",
    "empty": "",
    "markup": "</script><b onload=alert(1)>",
    "long": "x" * LONG,
}
ROLES = f"""
from rolemesh import Batch, Broadcast, operator, service

ODD = {ODD!r}


class Texts:
    def __init__(self, ctx):
        self.ctx = ctx

    @operator(returns=Broadcast())
    def make(self):
        name, text = [*ODD.items()][self.ctx.step % len(ODD)]
        self.ctx.metric(**{{text: self.ctx.step}})
        self.ctx.metric(**{{type("Own", (str,), {{}})(text): self.ctx.step}})
        self.ctx.count(**{{f"count {{text}}": 1}})
        self.ctx.record(**{{text: [text, {{text: text}}], "where": name}})
        self.ctx.warn(text)
        if self.ctx.step == len(ODD):
            raise ValueError(text) from KeyError(ODD["long"])
        return Batch({{text: [text, text]}}), {{text: (text, text)}}


class Check:
    def __init__(self, ctx):
        self.ctx = ctx

    @operator(value=Broadcast())
    def look(self, value):
        text = [*ODD.values()][self.ctx.step]
        batch, plain = value
        assert list(batch[text]) == [text, text]
        assert plain == {{text: (text, text)}}
"""
FLOW = "from rolemesh import flow\n\n\n@flow\ndef texts(job):\n    job.check.look(job.texts.make())\n"
JOB = """
name: texts
flow: flow.py:texts
steps: 20
roles:
  texts: {use: function, options: {target: "roles.py:Texts"}, resources: {cpu: 0.1}}
  check: {use: function, options: {target: "roles.py:Check"}, resources: {cpu: 0.1}}
"""


def escaped(text: str) -> str:
    return text.encode(errors="backslashreplace").decode()


def texts_job(make_job: Callable[..., Job]) -> Job:
    job = make_job("texts")
    for name, text in (("roles.py", ROLES), ("flow.py", FLOW), ("job.yaml", JOB)):
        (job.folder / name).write_text(text)
    return job


@pytest.mark.parametrize("engine", ["durable", pytest.param("inline", marks=pytest.mark.soak)])
def test_texts_of_all_kinds_reach_the_files_and_the_verbs(make_job: Callable[..., Job], engine: str) -> None:
    job = texts_job(make_job)
    if engine == "inline":
        job.backend = ("--engine", "inline")
    ended = job.run()
    assert ended.returncode == 1, ended.stdout[-2000:] + ended.stderr[-2000:]
    assert "ValueError: a\\ud800b" in ended.stderr, ended.stderr[-2000:]
    shown = ended.stdout + ended.stderr
    assert len(shown) < LONG
    assert not {"\x1b[31m", "\0", "\x07"} & set(shown)
    lines = [json.loads(line) for line in (job.run_dir / "metrics.jsonl").read_bytes().splitlines()]
    assert len(lines) == len(ODD)
    for line, (name, text) in zip(lines, ODD.items(), strict=True):
        told = escaped(text)
        assert (line[told], line[f"count {told}"], line["records"]["where"]) == (line["step"], 1, name)
        assert line["records"][told] == [told, {told: told}]
    for verb in ("status", "events", "logs", "report"):
        done = job.cli(verb, "texts")
        assert done.returncode == 0, (verb, done.stderr[-2000:])
        assert "\x1b[31m" not in done.stdout
    asked = job.cli("sql", "texts", "select name, value from metrics where operator is null", "--format", "json")
    names = {row["name"] for row in json.loads(asked.stdout)}
    assert {escaped(text) for text in ODD.values()} <= names
    assert "<b onload" not in (job.run_dir / "report.html").read_text()

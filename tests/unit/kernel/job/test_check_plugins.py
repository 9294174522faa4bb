"""`Workload.check_flow` sees what the job file lists under ``plugins``."""

from pathlib import Path

import pytest

import rolemesh
from rolemesh.errors import OptionsError

CODE = """
import rolemesh
from pydantic import BaseModel
from rolemesh import OptionsError, Workload, operator


class Options(BaseModel):
    source: str


class Reader(Workload):
    Options = Options

    @operator()
    def read(self): ...

    @classmethod
    def check_flow(cls, options, role, job):
        plugins = job.declared
        listed = {name: plugin.options.path for (kind, name), plugin in plugins.items() if kind == "sources"}
        if options.source not in listed:
            remedy = f"list it under plugins.sources; listed: {listed}"
            raise OptionsError(f"there is no source {options.source!r}", where="source", remedy=remedy)


@rolemesh.flow
def flow(job):
    job.a.read()
"""


def test_a_check_finds_the_plugins_of_the_job_by_kind_and_name(tmp_path: Path) -> None:
    (tmp_path / "checked_roles.py").write_text(CODE)
    (tmp_path / "rows.jsonl").write_text("{}\n")
    listed = {"sources": [{"use": "files", "options": {"path": "rows.jsonl"}}]}
    job = rolemesh.Job("checked", base=tmp_path, steps=1, plugins=listed).flow("checked_roles.py:flow")
    job.role("a", use="checked_roles.py:Reader", options={"source": "files"}).validate()
    with pytest.raises(OptionsError, match="there is no source 'kafka'") as raised:
        job.role("a", use="checked_roles.py:Reader", options={"source": "kafka"}).validate()
    assert "'files'" in str(raised.value.remedy)
    assert "rows.jsonl" in str(raised.value.remedy)

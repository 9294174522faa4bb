"""`rolemesh validate` names a source that the job file does not list, and one whose client is not installed."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from rolemesh import OptionsError, PluginError
from rolemesh.job.prepared import prepare

JOB = """\
name: reads
flow: reads_flow.py:reads
steps: null
roles:
  data: {use: source, options: {source: file}}
plugins:
  sources: [{use: files, options: {path: "*.jsonl"}}]
"""
FLOW = "from rolemesh import flow\n\n\n@flow\ndef reads(job):\n    job.data.next()\n"


def test_a_source_that_is_not_listed_is_named_with_the_nearest_that_is(tmp_path: Path) -> None:
    (tmp_path / "reads_flow.py").write_text(FLOW)
    (tmp_path / "job.yaml").write_text(JOB)
    with pytest.raises(OptionsError) as caught:
        prepare(tmp_path / "job.yaml")
    assert caught.value.what == "the job file has no source 'file'"
    assert str(caught.value.where).endswith("job.yaml:5: roles.data.options.source")
    assert caught.value.remedy == "did you mean 'files'?"
    prepare(tmp_path / "job.yaml", ["roles.data.options.source=files"])


@pytest.mark.parametrize(
    ("name", "module", "place"),
    [
        ("redis", "redis", "url: redis://x"),
        ("nats", "nats", "url: nats://x"),
        ("kafka", "confluent_kafka", "servers: x"),
    ],
)
def test_a_source_without_its_client_names_the_extra(
    name: str, module: str, place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "reads_flow.py").write_text(FLOW)
    options = f"{{{place}, streams: [s]}}"
    job = JOB.replace("source: file}", f"source: {name}}}")
    (tmp_path / "job.yaml").write_text(job.replace('files, options: {path: "*.jsonl"}', f"{name}, options: {options}"))
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(PluginError) as caught:
        prepare(tmp_path / "job.yaml")
    assert caught.value.remedy == f"pip install 'rolemesh-sources[{name}]'"
    assert str(caught.value.where).endswith("job.yaml:5: roles.data.options")

"""A journal is a file that people can read, and one that is damaged is an error with its place."""

import json
from pathlib import Path

import pytest
from rolemesh_durable.stores import JournalDamagedError, StateUnavailableError
from rolemesh_testing import StoreConformance

from {{ cookiecutter.__pkg }} import {{ cookiecutter.__class }}


class TestConformance(StoreConformance):
    """The tests that every store must pass."""

    plugin = "{{ cookiecutter.name }}"
    bad_options = ({"no_such_option": 1},)


def store(folder: Path, url: str = "{{ cookiecutter.name }}") -> {{ cookiecutter.__class }}:
    made = {{ cookiecutter.__class }}(url, folder, "job")
    made.connect()
    return made


def test_the_journal_is_json_in_the_runs_folder(tmp_path: Path) -> None:
    made = store(tmp_path)
    made.prepare()
    assert made.write(None, "root", records=[(1, "one")], head="h")
    found = json.loads((tmp_path / "journal" / "job.json").read_text())
    assert found == {"root": "root", "head": "h", "records": [[1, "one"]]}


def test_several_jobs_can_share_a_folder(tmp_path: Path) -> None:
    made = store(tmp_path / "run", f"{{ cookiecutter.name }}://{tmp_path}/shared")
    made.prepare()
    assert made.write(None, "root")
    assert (tmp_path / "shared" / "job.json").is_file()


def test_a_damaged_journal_is_an_error_that_reading_again_does_not_help(tmp_path: Path) -> None:
    (tmp_path / "journal").mkdir()
    (tmp_path / "journal" / "job.json").write_text('{"root": ')
    with pytest.raises(JournalDamagedError, match="no JSON") as raised:
        store(tmp_path)
    assert str(tmp_path) in str(raised.value.where)


def test_a_folder_that_is_gone_is_an_error_that_may_pass(tmp_path: Path) -> None:
    with pytest.raises(StateUnavailableError, match="nothing can be written"):
        store(tmp_path).write(None, "root")

"""Little room is a warning with a remedy, and a folder that is not there yet is no error."""

from pathlib import Path

import pytest
from rolemesh_testing import ExaminationConformance

from {{ cookiecutter.__pkg }} import {{ cookiecutter.__class }}, judged


class TestConformance(ExaminationConformance):
    """The tests that every examination must pass."""

    plugin = "{{ cookiecutter.name }}"
    bad_options = ({"no_such_option": 1},)


@pytest.mark.parametrize(("free_gb", "status"), [(500.0, "ok"), (5.0, "ok"), (0.5, "warning")])
def test_little_room_is_a_warning_with_a_remedy(free_gb: float, status: str) -> None:
    finding = judged("/cache", free_gb)
    assert finding.status == status
    assert bool(finding.remedy) == (status == "warning")


def test_a_cache_that_is_not_there_yet_is_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HOME", str(tmp_path / "not" / "yet"))
    examination = {{ cookiecutter.__class }}({{ cookiecutter.__class }}.Options())
    [finding] = examination.examine()
    assert str(tmp_path / "not" / "yet") in finding.what

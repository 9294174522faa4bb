"""Every distribution names the Pythons that `make interpreters` runs."""

from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
PROJECTS = [
    ROOT / "pyproject.toml",
    *sorted(ROOT.glob("plugins/*/*/pyproject.toml")),
    *sorted(ROOT.glob("examples/*/pyproject.toml")),
    *sorted(ROOT.glob("cookiecutter/_shared/*/pyproject.toml")),
]


@pytest.mark.parametrize("project", PROJECTS, ids=lambda path: str(path.parent.relative_to(ROOT)))
def test_a_distribution_names_the_pythons_it_was_run_with(project: Path) -> None:
    text = project.read_text()
    assert 'requires-python = ">=3.11"' in text
    for version in ("3.11", "3.12", "3.13"):
        assert f'"Programming Language :: Python :: {version}"' in text

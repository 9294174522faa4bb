"""The check after an installation takes nothing that an interrupted one left for a distribution."""

from __future__ import annotations

from importlib.metadata import distributions
from pathlib import Path

from requirements.check import usable


def test_the_intact_metadata_of_a_name_count(tmp_path: Path) -> None:
    for name in ("tiny-0.1", "~iny-0.9", "tiny-1.0", "half-1.0"):
        (tmp_path / f"{name}.dist-info").mkdir()
    for name in ("~iny-0.9", "tiny-1.0"):
        (tmp_path / f"{name}.dist-info/METADATA").write_text(f"Name: tiny\nVersion: {name[-3:]}\n")
    assert {name: each.version for name, each in usable(distributions(path=[str(tmp_path)])).items()} == {"tiny": "1.0"}

"""Which variables a script sets before it imports torch, as its source says."""

from __future__ import annotations

from pathlib import Path

import pytest

from rolemesh_launch.writes import Written, written

HEAD = "import os\n"
LAST = "\nimport torch\nos.environ['LATE'] = '1'\n"


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("", Written({}, True)),
        ("os.environ['A'] = '1'", Written({"A": "1"}, True)),
        ("os.environ.setdefault('A', '1')\nos.environ.setdefault('SET', '1')", Written({"A": "1", "SET": "0"}, True)),
        ("os.environ['A'] = str(os.cpu_count())", Written({}, False)),
        ("if os.environ.get('B'):\n    os.environ['A'] = '1'", Written({}, False)),
        ("def later():\n    os.environ['A'] = '1'", Written({}, False)),
        ("os.environ.update(A='1')", Written({}, False)),
        ("env = os.environ", Written({}, False)),
        ("from dotenv import load_dotenv\nload_dotenv()", Written({}, False)),
        ("import transformers\nos.environ['A'] = '1'", Written({}, False)),
        ("import own", Written({"OWN": "1"}, True)),
        ("from sub import own", Written({"SUB": "1"}, True)),
        ("def later():\n    import own", Written({}, False)),
        ("print(os.environ['A'], 'B' in os.environ, {**os.environ}, os.environ.get('C'))", Written({}, True)),
        ("os.environ['MASTER_PORT'] = '1'\nos.environ['PYTHONHASHSEED'] = '1'", Written({}, True)),
        ("os.environ['HF_TOKEN'] = 'none'", Written({}, True)),
        ("try:\n    import torch\nexcept ImportError:\n    pass\nos.environ['A'] = '1'", Written({}, True)),
        ("def later():\n    import torch\nos.environ['A'] = '1'", Written({"A": "1"}, True)),
    ],
)
def test_variables_are_set_before_torch_is_imported(tmp_path: Path, source: str, found: Written) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "own.py").write_text(HEAD + "os.environ['OWN'] = '1'")
    (tmp_path / "sub" / "own.py").write_text("from os import environ\nenviron['SUB'] = '1'")
    script = tmp_path / "script.py"
    script.write_text(HEAD + source + LAST)
    assert written(script, tmp_path, {"SET": "0"}) == found


def test_a_script_that_is_no_python_sets_nothing(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text("os.environ[")
    assert written(tmp_path / "script.py", tmp_path, {}) == Written({}, True)
    assert written(tmp_path / "none.py", tmp_path, {}) == Written({}, True)

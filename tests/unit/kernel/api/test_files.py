"""Classes of a job's own files have the same module name in every process of the job."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

PICKLES = """
import pickle, sys
from rolemesh.api.import_ref import ImportRef, import_paths
import_paths(sys.argv[1])
given = [ImportRef(text + ":Item", sys.argv[1]).resolve()() for text in sys.argv[2:]]
sys.stdout.buffer.write(pickle.dumps([pickle.dumps(each) for each in given]))
"""
UNPICKLES = """
import pickle, sys
from rolemesh.api.import_ref import import_paths
import_paths(sys.argv[1])
for each in pickle.load(sys.stdin.buffer):
    print(pickle.loads(each).where)
"""
FILES = ("roles.py", "my-roles.py", "tools/roles.py", "tools/of.mine x.py", "../beside/roles.py", "json.py", "Größe.py")


def _job(folder: Path) -> Path:
    base = folder / "job"
    for name in FILES:
        path = base / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"class Item:\n    where = {name!r}\n")
    return base


def _python(code: str, *arguments: object, given: bytes = b"") -> bytes:
    command = [sys.executable, "-P", "-c", code, *map(str, arguments)]
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONHASHSEED"}
    done = subprocess.run(command, input=given, env=environ, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout


def test_an_object_of_a_job_s_file_can_be_unpickled_in_a_process_that_has_not_imported_the_file(tmp_path: Path) -> None:
    base = _job(tmp_path)
    pickles = _python(PICKLES, base, *FILES)
    assert _python(UNPICKLES, base, given=pickles).decode().splitlines() == [*FILES]
    (tmp_path / "job").rename(tmp_path / "moved")
    assert _python(UNPICKLES, tmp_path / "moved", given=pickles).decode().splitlines() == [*FILES]


SIBLINGS = """
import sys
from rolemesh.api.import_ref import ImportRef, import_paths
import_paths(sys.argv[1])
first, second = (ImportRef(f"tools/{name}.py:Item", sys.argv[1]).resolve() for name in sys.argv[2:])
import asking, roles
assert asking.Item is roles.Item is first is second, (asking.Item, roles.Item, first, second)
"""


@pytest.mark.parametrize("names", [("asking", "roles"), ("roles", "asking")])
def test_an_import_statement_and_a_path_give_one_module_whichever_comes_first(
    tmp_path: Path, names: tuple[str, str]
) -> None:
    base = _job(tmp_path)
    (base / "roles.py").unlink()
    (base / "tools" / "asking.py").write_text("from roles import Item\n")
    _python(SIBLINGS, base, *names)


TWO_JOBS = """
import sys
from rolemesh.api.import_ref import ImportRef, import_paths
for base in sys.argv[1:]:
    import_paths(base)
    for text in ("roles.py", "my-roles.py", "tools/roles.py"):
        print(ImportRef(text + ":Item", base).resolve().where)
"""


def test_two_jobs_of_one_process_have_files_of_the_same_names(tmp_path: Path) -> None:
    bases = tmp_path / "one", tmp_path / "two"
    for base in bases:
        for name in ("roles.py", "my-roles.py", "tools/roles.py"):
            (base / "tools").mkdir(parents=True, exist_ok=True)
            (base / name).write_text(f"class Item:\n    where = '{base / name}'\n")
    wanted = [str(base / name) for base in bases for name in ("roles.py", "my-roles.py", "tools/roles.py")]
    assert _python(TWO_JOBS, *bases).decode().splitlines() == wanted


IN_A_ZIP = """
from rolemesh.plugins.discovery import discover
from rolemesh.plugins.static import attribute, looked_at
[record] = [each for each in discover(["workloads"]) if each.name == "zipped"]
print(looked_at(record).status, attribute(record, "says"), looked_at(record).error)
"""


@pytest.mark.parametrize("bad", [False, True])
def test_a_plugin_in_a_zip_is_looked_at_as_one_in_a_folder(tmp_path: Path, bad: bool) -> None:
    with zipfile.ZipFile(tmp_path / "plugins.zip", "w") as packed:
        source = f"import {'no_such_module' if bad else 'rolemesh'}\nclass Zipped:\n    says = 'hello'\n"
        packed.writestr("zipped/inside/__init__.py", source)
        packed.writestr("zipped/__init__.py", "raise RuntimeError('imported')\n")
        packed.writestr("zipped-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: zipped\nVersion: 1.0\n")
        packed.writestr(
            "zipped-1.0.dist-info/entry_points.txt", "[rolemesh.workloads]\nzipped = zipped.inside:Zipped\n"
        )
    found = _python(f"import sys; sys.path.append({str(tmp_path / 'plugins.zip')!r})" + IN_A_ZIP).decode()
    if bad:
        assert found.startswith("broken hello ModuleNotFoundError: No module named 'no_such_module'")
    else:
        assert found == "available hello \n"

"""The table that `make test` prints of its minutes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from tests.minutes import Run, main, over_budget, table

ROOT = Path(__file__).resolve().parents[1]
SLOW = {"tests/unit/engine/agent/test_a.py::test_x[1]": 90.0, "tests/unit/engine/agent/test_a.py::test_y [setup]": 30.0}
QUICK = {"plugins/workloads/fsdp/tests/test_b.py::test_z": 2.0, "tests/test_c.py::test_w": 0.1}


def a_run(wall_s: float, seconds: dict[str, float], high: float = 2.0) -> Run:
    return Run(wall_s, seconds, (1.0, high), 2)


def test_the_table_sums_up_folders_and_files_and_names_the_longest() -> None:
    told = table([a_run(60, SLOW), a_run(3, QUICK)])
    folders, files, tests, account = told.split("\n\n")
    assert "2.0 min  tests/unit/engine/agent\n    2.0 s    plugins/workloads/fsdp" in folders
    assert "2.0 min  tests/unit/engine/agent/test_a.py\n" in files
    first, second = (f"tests/unit/engine/agent/test_a.py::{name}" for name in ("test_x[1]", "test_y [setup]"))
    assert f"1.5 min  {first}\n   30.0 s    {second}" in tests
    assert account == "1.1 minutes, in which tests ran for 2.0; load average 1.0 to 2.0 on 2 cores"


def test_a_run_within_its_budget_is_fine_and_one_above_says_what_ran_beside_it() -> None:
    runs = [a_run(24 * 60, SLOW), a_run(2 * 60, QUICK, high=9.5)]
    assert over_budget(runs, 26) == ""
    told = over_budget(runs, 25)
    assert "took 26.0 minutes, and may take 25" in told
    assert "load average 1.0 to 9.5 on 2 cores" in told


def test_each_run_of_pytest_appends_its_minutes_also_one_in_two_processes(tmp_path: Path) -> None:
    (tmp_path / "test_one.py").write_text("import time\n\n\ndef test_one():\n    time.sleep(0.05)\n")
    (tmp_path / "test_two.py").write_text("def test_two():\n    pass\n")
    written = tmp_path / "minutes.jsonl"
    command = [sys.executable, "-m", "pytest", "-c", "/dev/null", "-p", "tests.minutes", "--minutes", str(written)]
    for processes in ((), ("-n", "2")):
        subprocess.run([*command, *processes, str(tmp_path)], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    first, second = map(json.loads, written.read_text().splitlines())
    calls = {name.rpartition("/")[2]: took for name, took in first["seconds"].items() if not name.endswith("]")}
    assert sorted(calls) == ["test_one.py::test_one", "test_two.py::test_two"]
    assert calls["test_one.py::test_one"] >= 0.05
    assert first["wall_s"] > calls["test_one.py::test_one"]
    assert second["seconds"].keys() == first["seconds"].keys()


def test_the_command_prints_the_table_and_fails_only_above_a_budget(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "minutes.jsonl"
    path.write_text("".join(json.dumps(run._asdict()) + "\n" for run in (a_run(60, SLOW), a_run(60, QUICK))))
    assert main([str(path)]) == 0
    assert main([str(path), "--budget", "2"]) == 0
    assert capsys.readouterr().err == ""
    assert main([str(path), "--budget", "1.9"]) == 1
    out, err = capsys.readouterr()
    assert "minutes by folder" in out
    assert err.startswith("error: the tests took 2.0 minutes")

"""``rolemesh plugins`` and ``rolemesh schema``."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

Rolemesh = Callable[..., subprocess.CompletedProcess[str]]


def test_list_shows_kind_name_distribution_version_and_status(rolemesh: Rolemesh) -> None:
    done = rolemesh("plugins", "list")
    assert done.returncode == 0
    header, *rows = done.stdout.splitlines()
    assert header.split() == ["KIND", "NAME", "DISTRIBUTION", "VERSION", "STATUS"]
    assert ["workloads", "function", "rolemesh-function"] in [row.split()[:3] for row in rows]


def test_a_broken_plugin_is_a_row_with_its_error(rolemesh: Rolemesh, broken_site: Path) -> None:
    done = rolemesh("plugins", "list", "--kind", "workloads", "--json", site=broken_site)
    assert done.returncode == 0
    [bad] = [record for record in json.loads(done.stdout) if record["name"] == "bad"]
    assert (bad["status"], bad["distribution"], bad["version"]) == ("broken", "bad-dist", "2.3")
    assert "No module named 'no_such_thing'" in bad["error"]
    assert {record["kind"] for record in json.loads(done.stdout)} == {"workloads"}


def test_check_finds_what_only_an_import_shows(rolemesh: Rolemesh, broken_site: Path) -> None:
    (broken_site / "bad_plugin.py").write_text("class Bad: ...\nraise RuntimeError('no licence')\n")
    [before] = [
        r for r in json.loads(rolemesh("plugins", "list", "--json", site=broken_site).stdout) if r["name"] == "bad"
    ]
    done = rolemesh("plugins", "list", "--check", "--json", site=broken_site)
    [after] = [record for record in json.loads(done.stdout) if record["name"] == "bad"]
    assert (before["status"], after["status"]) == ("available", "broken")
    assert "RuntimeError: no licence" in after["error"]


def test_disabled_plugins_are_listed_as_such(rolemesh: Rolemesh) -> None:
    done = rolemesh("plugins", "list", "--json", ROLEMESH_DISABLED_PLUGINS="function")
    assert [r["status"] for r in json.loads(done.stdout) if r["name"] == "function"] == ["disabled"]


def test_show_has_options_with_type_default_and_doc(rolemesh: Rolemesh) -> None:
    done = rolemesh("plugins", "show", "function", "--json")
    assert done.returncode == 0
    shown = json.loads(done.stdout)
    assert (shown["distribution"], shown["kind"]) == ("rolemesh-function", "workloads")
    options = {option["name"]: option for option in shown["options"]}
    assert options["target"] | {"doc": ""} == {
        "name": "target", "type": "ImportRef", "required": True, "default": None, "doc": "",
    }  # fmt: skip
    assert options["kwargs"]["type"] == "dict[str, Any]"
    assert "function" in options["kwargs"]["doc"]


def test_show_names_types_partitions_and_services_as_the_author_does(rolemesh: Rolemesh, tmp_path: Path) -> None:
    site = tmp_path / "site"
    (site / "shapes-1.0.dist-info").mkdir(parents=True)
    (site / "shapes-1.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: shapes\nVersion: 1.0\n")
    (site / "shapes-1.0.dist-info" / "entry_points.txt").write_text("[rolemesh.workloads]\nshapes = shapes:Shapes\n")
    (site / "shapes.py").write_text(
        "from typing import Annotated\nfrom pydantic import AfterValidator, BaseModel\n"
        "from rolemesh import Balanced, Split, Workload, operator, service\n"
        "class Options(BaseModel, extra='forbid'):\n"
        "    columns: dict[str, Annotated[str, AfterValidator(str.strip)]]\n"
        "class Shapes(Workload):\n    Options = Options\n"
        "    @operator(rows=Balanced(1, 8), returns=Split())\n    async def score(self, rows): ...\n"
        "    @service(timeout_s=2)\n    def area(self, width: int, height: int = 1) -> int:\n        'In metres.'\n"
    )
    shown = json.loads(rolemesh("plugins", "show", "shapes", "--json", site=site).stdout)
    assert [option["type"] for option in shown["options"]] == ["dict[str, str]"]
    text = rolemesh("plugins", "show", "shapes", site=site).stdout
    assert "score(rows: Balanced(1, 8)) -> Split()\n" in text  # as its author declares it
    assert "  services:\n    area(width, height=1)  (1 at once, at most 2 s)\n        In metres.\n" in text


def test_show_has_the_hooks_of_an_observer(rolemesh: Rolemesh) -> None:
    done = rolemesh("plugins", "show", "console")
    assert done.returncode == 0
    assert "hooks:" in done.stdout
    assert "steps_finished(self" in done.stdout


def test_show_prints_the_error_of_a_broken_plugin_and_ends_with_2(rolemesh: Rolemesh, broken_site: Path) -> None:
    done = rolemesh("plugins", "show", "bad", site=broken_site)
    assert done.returncode == 2
    assert "bad-dist 2.3" in done.stdout
    assert "No module named 'no_such_thing'" in done.stdout
    assert "Traceback" not in done.stdout + done.stderr


@pytest.mark.parametrize(
    ("arguments", "what", "remedy"),
    [
        (("show", "functon"), "there is no plugin 'functon'", "did you mean 'function'?"),
        (("list", "--kind", "workload"), "there is no kind 'workload'", "did you mean 'workloads'?"),
    ],
)
def test_a_misspelled_name_gets_the_nearest(
    rolemesh: Rolemesh, arguments: tuple[str, ...], what: str, remedy: str
) -> None:
    done = rolemesh("plugins", *arguments)
    assert done.returncode == 2
    assert what in done.stderr
    assert remedy in done.stderr
    assert "Traceback" not in done.stderr


def test_the_schema_has_the_options_of_installed_plugins_and_notes_broken_ones(
    rolemesh: Rolemesh, broken_site: Path
) -> None:
    done = rolemesh("schema", site=broken_site)
    assert done.returncode == 0
    schema = json.loads(done.stdout)
    cases = schema["$defs"]["RoleSpec"]["allOf"]
    [function] = [case for case in cases if "function" in case["if"]["properties"]["use"]["enum"]]
    assert function["then"]["required"] == ["options"]
    assert "target" in function["then"]["properties"]["options"]["properties"]
    assert "left out: the workload 'bad' (bad-dist 2.3)" in done.stderr


def test_every_reference_of_the_schema_is_defined(rolemesh: Rolemesh) -> None:
    text = rolemesh("schema").stdout
    definitions = json.loads(text)["$defs"]
    references = {part.split('"')[0] for part in text.split('"#/$defs/')[1:]}
    assert references
    assert references <= definitions.keys()


HEAVY = {"ray", "torch", "vllm", "transformers", "numpy", "sqlalchemy", "zmq", "yaml", "stevedore", "pluggy"}


@pytest.fixture
def crowded_site(tmp_path: Path) -> Path:
    """A folder with fifty installed distributions of one plugin each, whose modules import what is heavy."""
    site = tmp_path / "site"
    for number in range(50):
        info = site / f"crowd_{number}-0.1.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: crowd-{number}\nVersion: 0.1\n")
        (info / "entry_points.txt").write_text(f"[rolemesh.workloads]\ncrowd-{number} = crowd_{number}:Plugin\n")
        (site / f"crowd_{number}.py").write_text(
            "import numpy\nfrom rolemesh import Workload\nclass Plugin(Workload): ...\n"
        )
    return site


@pytest.mark.parametrize("arguments", [["--help"], ["plugins", "list"], ["plugins", "list", "--json"]])
def test_help_and_list_import_nothing_heavy_and_no_plugin(
    arguments: list[str], tmp_path: Path, crowded_site: Path
) -> None:
    code = (
        f"import sys; sys.path.insert(0, {str(crowded_site)!r}); from rolemesh.cli import main; main(sys.argv[1:]); "
        "print(*sorted({m.split('.')[0] for m in sys.modules}), file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert arguments == ["--help"] or done.stdout.count("crowd-") >= 50
    loaded = set(done.stderr.split())
    assert "rolemesh" in loaded
    assert not loaded & (HEAVY if arguments == ["--help"] else HEAVY | {"rich"})  # typer shows its help with rich
    assert not {name for name in loaded if name.startswith(("rolemesh_", "crowd_"))}

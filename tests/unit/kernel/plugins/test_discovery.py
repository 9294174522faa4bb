"""Installed plugins, read from metadata without an import. A double name is an error only for a job that selects it."""

import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

from rolemesh.api.import_ref import find_module
from rolemesh.cli import main
from rolemesh.errors import PluginError
from rolemesh.job.run import engine_named
from rolemesh.kinds import kinds
from rolemesh.kinds.offered import how_to_get, need, offered
from rolemesh.plugins.defaults import default_engine
from rolemesh.plugins.discovery import PluginRecord, discover, find, resolve

Install = Callable[..., Path]
VERBS = ("commands", "doctor")
"""Kinds whose plugins nobody selects in a job file."""


def named(name: str, **environ: str) -> list[PluginRecord]:
    return [record for record in discover(environ=environ) if record.name == name]


def test_a_record_agrees_with_the_metadata(toy: object) -> None:
    assert named("toy") == [PluginRecord("workloads", "toy", "toy-dist", "1.2", "toy_plugin:Toy")]


def test_discovery_imports_no_plugin(toy: object) -> None:
    assert named("toy")
    assert "toy_plugin" not in sys.modules


def test_a_default_workload_is_found_like_any_other() -> None:
    assert {record.distribution for record in discover(("workloads",)) if record.name == "function"} == {
        "rolemesh-function"
    }


def test_a_kind_that_nothing_installed_declares_names_the_distribution_that_does(install: Install) -> None:
    """As after a partial upgrade: the code asks for a kind that the metadata of its distribution do not have yet."""
    install("gadget-dist", "1.0", {"gadgets": {"one": "a:B"}, "offered": {"kinds.gadgets": "gadget_engine"}})
    with pytest.raises(
        PluginError, match="there is no kind 'gadgets' of plugins: gadget-engine, which declares it"
    ) as e:
        discover(("gadgets",))
    assert "pip install --force-reinstall gadget-engine" in str(e.value.remedy)


def test_a_distribution_seen_twice_is_one_plugin_the_first_on_the_path(install: Install) -> None:
    install("twin-dist", "1.0", {"workloads": {"twin": "a:B"}})
    install("twin.dist", "2.0", {"workloads": {"twin": "a:B"}})
    [record] = named("twin")
    assert (record.version, record.status) == ("2.0", "available")


def test_two_distributions_with_one_name_are_both_kept_and_selecting_is_an_error(install: Install) -> None:
    install("one", "1.0", {"workloads": {"same": "a:B"}})
    install("two", "3.1", {"workloads": {"same": "c:D"}})
    records = discover()
    both = [record for record in records if record.name == "same"]
    assert [(record.distribution, record.status) for record in both] == [("one", "duplicate"), ("two", "duplicate")]
    with pytest.raises(PluginError) as caught:
        find("workloads", "same", records, "job.yaml:5: roles.a.use")
    assert caught.value.where == "job.yaml:5: roles.a.use"
    assert caught.value.what == "two distributions offer the workload 'same': one 1.0 and two 3.1"
    assert caught.value.remedy == "write 'one:same' or 'two:same', or uninstall one of them"


def test_a_default_that_two_distributions_offer_stays_the_default_so_selecting_it_is_an_error(install: Install) -> None:
    install("one", "1.0", {"engines": {"same": "a:B"}, "defaults": {"engines": "same"}})
    install("two", "3.1", {"engines": {"same": "c:D"}})
    records = discover(("engines",))
    assert default_engine(records) == "same"
    with pytest.raises(PluginError, match=r"two distributions offer the engine 'same': one 1\.0 and two 3\.1"):
        engine_named(None)
    assert find("engines", "two:same", records).target == "c:D"


def test_a_verb_that_two_distributions_offer_names_both(install: Install, capsys: pytest.CaptureFixture[str]) -> None:
    install("one", "1.0", {"commands": {"same": "a:B"}})
    install("two", "3.1", {"commands": {"same": "c:D"}})
    assert main(["same"]) == 2
    assert "two distributions offer the command 'same'" in capsys.readouterr().err


def test_a_distributions_name_resolves_a_duplicate(install: Install) -> None:
    install("one", "1.0", {"workloads": {"same": "a:B"}})
    install("my_two", "3.1", {"workloads": {"same": "c:D"}})
    record = find("workloads", "My-Two:same", discover())
    assert (record.target, record.status, record.error) == ("c:D", "available", "")


@pytest.mark.parametrize("entry", ["same", "one:same", "one"])
def test_a_name_can_be_disabled_before_import(install: Install, entry: str) -> None:
    install("one", "1.0", {"workloads": {"same": "a:B"}})
    [record] = named("same", ROLEMESH_DISABLED_PLUGINS=f"other, {entry}")
    assert record.status == "disabled"
    with pytest.raises(PluginError, match="is disabled: switched off by ROLEMESH_DISABLED_PLUGINS"):
        find("workloads", "same", [record])


def test_disabling_one_distribution_resolves_a_duplicate(install: Install) -> None:
    install("one", "1.0", {"workloads": {"same": "a:B"}})
    install("two", "3.1", {"workloads": {"same": "c:D"}})
    records = discover(environ={"ROLEMESH_DISABLED_PLUGINS": "one"})
    assert find("workloads", "same", records).distribution == "two"


def test_an_allow_list_leaves_nothing_else(toy: object, install: Install) -> None:
    install("one", "1.0", {"workloads": {"same": "a:B"}})
    records = discover(("workloads",), {"ROLEMESH_PLUGINS": "toy"})
    assert [record.name for record in records if record.status == "available"] == ["toy"]
    with pytest.raises(PluginError) as caught:
        find("workloads", "same", records)
    assert caught.value.remedy == "add 'same' to ROLEMESH_PLUGINS"


def test_an_entry_point_without_an_attribute_is_broken(install: Install) -> None:
    install("bad", "0.1", {"workloads": {"bad": "module_only"}})
    [record] = named("bad")
    assert record.status == "broken"
    with pytest.raises(PluginError, match="is not module:attribute"):
        find("workloads", "bad", [record])


def test_the_error_for_an_unknown_plugin_lists_installed_plugins_and_the_package_to_install() -> None:
    records = [PluginRecord("workloads", "function", "rolemesh-function", "0.1.0", "a:B")]
    with pytest.raises(PluginError) as caught:
        find("workloads", "fsdp", records, "job.yaml:3: roles.t.use")
    assert caught.value.what == "there is no workload 'fsdp'"
    assert caught.value.remedy == "pip install rolemesh-fsdp; installed: function"
    with pytest.raises(PluginError) as caught:
        find("schedulers", "colocation", records)
    assert caught.value.remedy == "did you mean 'collocation'?; installed: none"
    with pytest.raises(PluginError) as caught:
        find("schedulers", "function", records)
    assert caught.value.remedy == "'function' is a workload; installed: none"
    with pytest.raises(PluginError) as caught:
        find("workloads", "other:function", records)
    assert caught.value.remedy == "'function' is offered by rolemesh-function; installed: function"


def test_remains_of_an_interrupted_installation_are_passed_over(toy: object, tmp_path: object) -> None:
    import pathlib

    broken = pathlib.Path(str(toy)) / "half-1.0.dist-info"
    broken.mkdir()
    (broken / "entry_points.txt").write_text("[rolemesh.workloads]\nhalf = a:B\n")
    assert named("half") == []
    assert named("toy")


def test_a_class_of_the_jobs_own_is_a_file_or_a_module_and_has_no_distribution(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own_parts").mkdir()
    (tmp_path / "own_parts/one.py").touch()
    monkeypatch.setattr(sys, "path", [*sys.path])
    in_file = resolve("workloads", "one.py:One", (), tmp_path / "own_parts")
    assert (in_file.distribution, in_file.target) == ("", f"{tmp_path}/own_parts/one.py:One")
    in_module = resolve("workloads", "own_parts.one:One", (), tmp_path)
    assert (in_module.distribution, in_module.target) == ("", "own_parts.one:One")
    with pytest.raises(PluginError, match=r"there is no workload 'own_parts\.two:One'"):
        resolve("workloads", "own_parts.two:One", (), tmp_path)


def test_nothing_beside_the_job_or_in_the_working_directory_is_taken_for_something_installed(
    install: Install, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A user who writes there must not choose what runs (CWE-427; Jupyter: CVE-2022-39286)."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    install("real", "1.0", {"workloads": {"real": "of_real:One"}}, of_real="One = 1")
    for folder in (base := tmp_path / "job", here := tmp_path / "here"):
        (folder / "of_real").mkdir(parents=True)
        (folder / "of_real/__init__.py").write_text("raise SystemExit('planted')")
        (folder / "helper_of_job.py").write_text("")
        info = folder / "planted-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: planted\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text("[rolemesh.workloads]\nplanted = of_real:One\n")
    monkeypatch.chdir(here)
    resolve("workloads", "helper_of_job:One", (), base)  # from here on, both folders are on the path
    assert find_module("of_real").origin == str(tmp_path / "site0/of_real.py")
    assert find_module("helper_of_job").origin == str(base / "helper_of_job.py")
    assert {"real", "planted"} & {record.name for record in discover(["workloads"])} == {"real"}


def test_a_distribution_comes_before_a_module_of_its_name(install: Install, tmp_path: Path) -> None:
    install("same", "1.0", {"workloads": {"One": "same:Other"}}, same="Other = One = None")
    record = resolve("workloads", "same:One", discover(), tmp_path)
    assert (record.distribution, record.target) == ("same", "same:Other")


def test_the_repository_offers_its_plugins_and_kinds_each_with_its_distribution() -> None:
    """So that an error about one that is not installed names what to install."""
    root = Path(__file__).resolve().parents[4]
    wanted: dict[str, dict[str, str]] = {}
    for file in (root / "pyproject.toml", *root.glob("plugins/*/*/pyproject.toml")):
        project = tomllib.loads(file.read_text())["project"]
        for group, points in project.get("entry-points", {}).items():
            kind = group.removeprefix("rolemesh.")
            if group.startswith("rolemesh.") and kind in (*kinds(), "kinds") and kind not in VERBS:
                extras = project.get("optional-dependencies", {})
                for name in points:
                    extra = f"[{name}]" if name in extras else ""
                    wanted.setdefault(kind, {})[name] = project["name"] + extra
    wanted["failover"] |= dict.fromkeys(("job", "process"), "rolemesh[local]")
    found = {kind: {name: by for name, by in offered(kind).items() if name} for kind in wanted}
    assert found == wanted


def test_a_verb_and_an_engine_that_are_not_installed_name_an_extra() -> None:
    assert how_to_get("commands", "status") == how_to_get("engines") == "pip install 'rolemesh[local]'"
    assert how_to_get("commands", "unheard-of") == ""


def test_a_plugin_without_its_client_names_the_extra_that_its_distribution_offers(install: Install) -> None:
    install("their", "1.0", {"offered": {"sources.theirs": "their:client"}})
    need("sources", "theirs", "json.decoder")
    with pytest.raises(PluginError, match=r"'theirs' needs the module 'no_client\.of_theirs', which") as caught:
        need("sources", "theirs", "no_client.of_theirs")
    assert caught.value.remedy == "pip install 'their[client]'"

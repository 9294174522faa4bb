"""The remains of an interrupted installation. They hide no distribution, and a warning names them with a remedy."""

import importlib
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from rolemesh.errors import PluginError
from rolemesh.kinds.installed import distribution, how_to_install, leftovers, version
from rolemesh.plugins.discovery import discover, find

METADATA = "Metadata-Version: 2.1\nName: Gad.get\nVersion: {}\n"
POINTS = "[rolemesh.workloads]\ngadget = gadget_code:{}\n"


def put(site: Path, number: str, files: dict[str, str], folder: str = "gad_get-{}.dist-info") -> Path:
    """A folder of metadata with these files."""
    info = site / folder.format(number)
    info.mkdir(parents=True)
    for name, text in files.items():
        (info / name).write_text(text)
    return info


def complete(site: Path, number: str, listed: str = "") -> Path:
    """A distribution as pip installs it. `listed`: a further line of its RECORD."""
    files = {"METADATA": METADATA.format(number), "entry_points.txt": POINTS.format(f"V{number.replace('.', '_')}")}
    record = "".join(f"gad_get-{number}.dist-info/{name},,\n" for name in files)
    return put(site, number, files | {"RECORD": record + listed})


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of the path with version 1.0, intact, behind an empty folder ``tmp_path/ahead``."""
    site, ahead = tmp_path / "site", tmp_path / "ahead"
    ahead.mkdir()
    complete(site, "1.0")
    monkeypatch.syspath_prepend(str(site))
    monkeypatch.syspath_prepend(str(ahead))
    importlib.invalidate_caches()
    return site


def left_by(test: Path) -> list[PluginError]:
    return [each for each in leftovers() if str(test) in (each.where or "")]


def targets() -> list[tuple[str, str, str]]:
    return [(each.version, each.target, each.status) for each in discover() if each.name == "gadget"]


LEFTOVERS: dict[str, Callable[[Path], Path]] = {
    "empty": lambda site: put(site, "0.9", {}),
    "no entry points": lambda site: put(site, "0.9", {"METADATA": METADATA.format("0.9")}),
    "no METADATA": lambda site: put(site, "0.9", {"entry_points.txt": POINTS.format("Old")}),
    "no RECORD": lambda site: put(
        site, "0.9", {"METADATA": METADATA.format("0.9"), "entry_points.txt": POINTS.format("Old")}
    ),
    "an empty METADATA": lambda site: put(site, "0.9", {"METADATA": "", "RECORD": ""}),
    "its code is gone": lambda site: complete(site, "0.9", "gadget_code/__init__.py,,\n"),
    "no text": lambda site: binary(put(site, "0.9", {"METADATA": METADATA.format("0.9")}) / "entry_points.txt"),
    "METADATA is no text": lambda site: binary(put(site, "0.9", {}) / "METADATA"),
    "a damaged file": lambda site: put(
        site, "0.9", {"METADATA": METADATA.format("0.9"), "entry_points.txt": "[rolemesh.workloads]\nno value\n"}
    ),
    "an egg": lambda site: put(site, "", {}, "gad_get.egg-info"),
    "an egg that is older": lambda site: put(
        site, "0.9", {"PKG-INFO": METADATA.format("0.9"), "entry_points.txt": POINTS.format("Old")}, "Gad.get.egg-info"
    ),
    "renamed by pip": lambda site: put(
        site,
        "0.9",
        {"METADATA": METADATA.format("0.9"), "entry_points.txt": POINTS.format("Old"), "RECORD": "x,,\n"},
        "~ad_get-{}.dist-info",
    ),
    "renamed twice": lambda site: put(site, "0.9", {"METADATA": METADATA.format("0.9")}, "~-d_get-{}.dist-info"),
}


def binary(path: Path) -> Path:
    path.write_bytes(b"\xff\xfe[rolemesh.\x00")
    return path.parent


@pytest.mark.parametrize("where", ["ahead", "site"])
@pytest.mark.parametrize("kind", LEFTOVERS)
def test_a_leftover_hides_no_intact_distribution_and_is_named(
    kind: str, where: str, site: Path, tmp_path: Path
) -> None:
    folder = LEFTOVERS[kind](tmp_path / where)
    importlib.invalidate_caches()
    assert targets() == [("1.0", "gadget_code:V1_0", "available")]
    assert version("gad-get") == distribution("Gad_Get").version == "1.0"
    [left] = left_by(tmp_path)
    assert left.where == str(folder)
    assert left.remedy is not None
    subprocess.run(left.remedy, shell=True, check=True)
    importlib.invalidate_caches()
    assert left_by(tmp_path) == []
    assert version("gad-get") == "1.0"


def test_the_newer_of_two_complete_versions_in_one_folder_counts(site: Path, tmp_path: Path) -> None:
    older = complete(site, "0.10")
    complete(site, "0.9")
    importlib.invalidate_caches()
    assert version("gad-get") == "1.0"
    assert str(older) in {each.where for each in left_by(tmp_path)}


def test_the_first_of_two_complete_versions_on_the_path_counts_and_the_other_is_no_leftover(
    site: Path, tmp_path: Path
) -> None:
    complete(tmp_path / "ahead", "0.9")
    importlib.invalidate_caches()
    assert version("gad-get") == "0.9"
    assert left_by(tmp_path) == []


def test_metadata_without_a_record_count_where_there_are_no_others(site: Path, tmp_path: Path) -> None:
    """Debian's packages have none."""
    (site / "gad_get-1.0.dist-info/RECORD").unlink()
    importlib.invalidate_caches()
    assert targets() == [("1.0", "gadget_code:V1_0", "available")]
    assert left_by(tmp_path) == []


@pytest.fixture
def half(site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The distribution that offers the workload ``fsdp``, half installed and no other."""
    (site / "gad_get-1.0.dist-info/METADATA").unlink()
    offers = tmp_path / "offers"
    offered = "[rolemesh.offered]\nworkloads.gadget = gad_get\n"
    files = {"METADATA": METADATA.format("1.0").replace("Gad.get", "offers"), "entry_points.txt": offered}
    put(offers, "1.0", files, "offers-{}.dist-info")
    monkeypatch.syspath_prepend(str(offers))
    importlib.invalidate_caches()
    return site / "gad_get-1.0.dist-info"


def test_a_plugin_that_is_half_installed_is_not_called_missing(half: Path) -> None:
    assert targets() == []
    with pytest.raises(PluginError, match="gad-get is not installed"):
        version("gad-get")
    with pytest.raises(PluginError) as caught:
        find("workloads", "gadget", discover())
    remedy = caught.value.remedy or ""
    assert remedy.startswith(f"rm -r {half} && pip install gad-get; {half}: an interrupted installation left it")
    assert how_to_install("gad-get", "gad-get==1.0").startswith(f"rm -r {half} && pip install gad-get==1.0; ")


def test_an_unknown_plugin_may_be_one_that_is_half_installed(half: Path) -> None:
    with pytest.raises(PluginError, match=f"or pip install what offers it; {half}: an interrupted"):
        find("workloads", "entirely-else", discover())


def test_an_old_name_of_a_plugin_still_selects_it_and_a_warning_has_the_new_one(site: Path, tmp_path: Path) -> None:
    points = "[rolemesh.renamed]\nworkloads.inspector = gadget\n\n[rolemesh.observers]\ninspector = code:Other\n"
    put(site, "1.0", {"METADATA": METADATA.format("1.0"), "entry_points.txt": points}, "others-{}.dist-info")
    importlib.invalidate_caches()
    with pytest.warns(FutureWarning, match="'inspector' is called 'gadget' now: write gadget"):
        found = find("workloads", "inspector", discover())
    assert (found.name, found.target) == ("inspector", find("workloads", "gadget", discover()).target)


def test_every_command_uses_the_intact_kernel_and_the_list_of_plugins_names_leftovers(tmp_path: Path) -> None:
    for name in ("rolemesh", "rolemesh_durable", "rolemesh_local"):
        put(tmp_path, "0.0.1", {}, f"{name}-{{}}.dist-info")
    environ = os.environ | {"PYTHONPATH": str(tmp_path)}

    def rolemesh(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "rolemesh.cli", *arguments]
        return subprocess.run(command, env=environ, capture_output=True, text=True, check=True)

    assert rolemesh("--version").stdout.strip() == version("rolemesh")
    listed = rolemesh("plugins", "list", "--json")
    assert '"function"' in listed.stdout
    assert listed.stderr.count("an interrupted installation left it") == 3
    assert f"rm -r {tmp_path}/rolemesh-0.0.1.dist-info" in listed.stderr


def test_a_verb_that_is_half_installed_is_named(site: Path, tmp_path: Path) -> None:
    (site / "gad_get-1.0.dist-info/METADATA").unlink()
    command = [sys.executable, "-m", "rolemesh.cli", "gadget"]
    environ = os.environ | {"PYTHONPATH": str(site)}
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert f"{site}/gad_get-1.0.dist-info: an interrupted installation left it" in done.stderr

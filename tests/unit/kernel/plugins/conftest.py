"""Distributions with real metadata, made in a temporary folder on ``sys.path``; no pip."""

import importlib
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

Install = Callable[..., Path]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """``install("dist", "1.0", {"workloads": {"name": "module:attr"}}, module="source")`` → its folder on sys.path."""
    modules: set[str] = set()
    sites: list[Path] = []

    def make(
        name: str, version: str, points: Mapping[str, Mapping[str, str]], site: Path | None = None, **sources: str
    ) -> Path:
        site = site or tmp_path / f"site{len(sites)}"
        info = site / f"{name.replace('-', '_')}-{version}.dist-info"
        info.mkdir(parents=True, exist_ok=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        lines = []
        for kind, entries in points.items():
            lines += [f"[rolemesh.{kind}]", *(f"{key} = {value}" for key, value in entries.items()), ""]
        (info / "entry_points.txt").write_text("\n".join(lines))
        for module, source in sources.items():
            (site / f"{module}.py").write_text(textwrap.dedent(source))
            modules.add(module)
        if str(site) not in sys.path:
            monkeypatch.syspath_prepend(str(site))
        sites.append(site)
        importlib.invalidate_caches()
        return site

    monkeypatch.delenv("ROLEMESH_PLUGINS", raising=False)
    monkeypatch.delenv("ROLEMESH_DISABLED_PLUGINS", raising=False)
    yield make
    for module in modules:
        sys.modules.pop(module, None)


WORKLOAD = """
from pydantic import BaseModel, Field
from rolemesh import OptionsError, Split, Workload, operator

class Nested(BaseModel, extra="forbid"):
    depth: int = 1

class Toy(Workload):
    '''A toy.'''
    class Options(BaseModel, extra="forbid"):
        rate: float = Field(0.5, description="how fast")
        nested: Nested = Nested()
    api_version = 1

    @operator(x=Split(), returns=Split())
    def run(self, x):
        '''Does nothing.'''
        return x

    @classmethod
    def check(cls, options, world_size):
        if world_size > 2:
            raise OptionsError("too many ranks", remedy="use two")
        if options.rate > 1:
            raise OptionsError("too fast", where="rate", remedy="slow down")
"""


@pytest.fixture
def toy_source() -> str:
    """The source of a module with the workload `Toy`."""
    return WORKLOAD


@pytest.fixture
def toy(install: Install) -> Path:
    """The distribution ``toy-dist`` with the workload ``toy``."""
    return install("toy-dist", "1.2", {"workloads": {"toy": "toy_plugin:Toy"}}, toy_plugin=WORKLOAD)


@pytest.fixture
def basics(install: Install) -> None:
    """A scheduler ``pack2``, so that job files need nothing of the kernel's own."""
    install(
        "basics",
        "0.1",
        {"schedulers": {"pack2": "basics_plugin:Pack"}},
        basics_plugin="""
            from rolemesh import Scheduler, hookimpl
            class Pack(Scheduler):
                @hookimpl
                def place(self, plan):
                    return plan
            """,
    )

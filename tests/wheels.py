"""Wheels of one small module, written by hand, without a build or an index."""

from __future__ import annotations

import zipfile
from pathlib import Path

__all__ = ["write_wheel"]


def write_wheel(
    folder: Path, version: str, name: str = "tiny", requires: str = "", source: str = "", entry_points: str = ""
) -> Path:
    """A wheel of the distribution `name` with a module of that name, whose `VERSION` is its version.

    `source` is what the module has besides; `entry_points` the text of ``entry_points.txt``.
    """
    folder.mkdir(exist_ok=True)
    module = name.replace("-", "_")
    info = f"{module}-{version}.dist-info"
    needs = f"Requires-Dist: {requires}\n" if requires else ""
    files = {
        f"{module}.py": f'VERSION = "{version}"\n{source}',
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{needs}",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: by-hand\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    if entry_points:
        files[f"{info}/entry_points.txt"] = entry_points
    record = "".join(f"{path},,\n" for path in [*files, f"{info}/RECORD"])
    path = folder / f"{module}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        for file, text in {**files, f"{info}/RECORD": record}.items():
            wheel.writestr(file, text)
    return path

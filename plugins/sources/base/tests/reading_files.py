"""Writing and reading one file, for the tests of the source `files`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rolemesh_files import FilesOptions, FilesSource
from rolemesh_sources import Reader


def write(path: Path, *numbers: int, mode: str = "a", end: str = "\n") -> None:
    with path.open(mode) as file:
        file.write("\n".join(json.dumps({"n": n}) for n in numbers) + end)


class Reading:
    """A reader that reads one file to its end at each request. `again` reads as a restarted rank would."""

    def __init__(self, base: Path, **options: Any) -> None:
        self.base, self.options, self.offset = base, {"path": "*.jsonl", "scan_s": 0, **options}, None
        self.again()

    def again(self) -> None:
        self.source = FilesSource(FilesOptions(**self.options))
        self.source.open(Reader("job", "data", 0, 1, str(self.base)))

    def all(self, most: int = 100) -> list[int]:
        found: list[int] = []
        while True:
            got = self.source.read("a.jsonl", self.offset, most)
            found += [row["n"] for row in got.rows]
            if got.offset == self.offset or len(found) >= most:
                self.offset = got.offset
                return found
            self.offset = json.loads(json.dumps(got.offset))

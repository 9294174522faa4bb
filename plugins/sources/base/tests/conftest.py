"""Reading from a broker in the tests of sources: modules have the fixtures `source_class`, `server` and `name`."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.waiting import HANG_S

from rolemesh_sources import Reader, SourceError
from rolemesh_sources.brokers import BrokerSource

sys.path.insert(0, str(Path(__file__).parent))


class Reading:
    """Reads one stream any number of times. `again` reads as a restarted rank would."""

    def __init__(self, source_class: type[BrokerSource], url: str, stream: str, **options: Any) -> None:
        self.source_class, self.url, self.stream, self.options, self.offset = source_class, url, stream, options, None
        self.source: BrokerSource | None = None
        self.again()

    def again(self) -> None:
        if self.source is not None:
            self.source.close()
        place = "servers" if "servers" in self.source_class.Options.model_fields else "url"
        options = self.source_class.Options(**{place: self.url, "streams": [self.stream], **self.options})
        self.source = self.source_class(options)
        self.source.open(Reader("job", "data", 0, 1, "."))

    def take(self, count: int, most: int = 100, timeout_s: float = HANG_S) -> list[int]:
        assert self.source is not None
        found: list[int] = []
        until = time.monotonic() + timeout_s
        while len(found) < count and time.monotonic() < until:
            got = self.source.read(self.stream, self.offset, min(most, count - len(found)))
            found += [row["n"] for row in got.rows]
            self.offset = json.loads(json.dumps(got.offset))
            if not got.rows:
                time.sleep(0.005)
        return found

    def fails(self) -> SourceError:
        with pytest.raises(SourceError) as caught:
            self.take(1000)
        return caught.value


@pytest.fixture
def opened(source_class: type[BrokerSource]) -> Iterator[Any]:
    """``opened(url, stream, **options)``: a reading, closed at the test's end."""
    made: list[Reading] = []

    def make(url: str, stream: str, **options: Any) -> Reading:
        made.append(Reading(source_class, url, stream, **options))
        return made[-1]

    yield make
    for each in made:
        if each.source is not None:
            each.source.close()


@pytest.fixture
def reading(opened: Any, server: Any, name: str) -> Any:
    """The same, of the stream `name` of `server` unless others are given."""

    def make(stream: str = name, url: str = server.url, **options: Any) -> Reading:
        return opened(url, stream, **options)

    return make

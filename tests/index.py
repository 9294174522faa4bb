"""A package index on loopback, over HTTP, that records its requests, and wheels to put into it.

As a proxy it answers for every host.
"""

from __future__ import annotations

import re
import threading
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from types import TracebackType
from urllib.parse import unquote, urlsplit

__all__ = ["Index", "fake_wheel", "wheel_of"]


def fake_wheel(folder: Path, name: str, version: str, requires: Sequence[str] = ()) -> Path:
    """A wheel for any Python with nothing in it but its metadata."""
    stem = f"{name.replace('-', '_')}-{version}"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    metadata += "".join(f"Requires-Dist: {each}\n" for each in requires)
    files = {
        f"{stem}.dist-info/METADATA": metadata,
        f"{stem}.dist-info/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(f"{path},,\n" for path in (*files, f"{stem}.dist-info/RECORD"))
    made = folder / f"{stem}-py3-none-any.whl"
    with zipfile.ZipFile(made, "w") as wheel:
        for path, text in files.items():
            wheel.writestr(path, text)
        wheel.writestr(f"{stem}.dist-info/RECORD", record)
    return made


def wheel_of(folder: Path, name: str) -> Path | None:
    """A wheel of a distribution as it is installed here; None where it is not installed."""
    try:
        installed = distribution(name)
    except PackageNotFoundError:
        return None
    stem = f"{name}-{installed.version}"
    made = folder / f"{stem}-py3-none-any.whl"
    record = []
    with zipfile.ZipFile(made, "w") as wheel:
        for file in installed.files or []:
            if "__pycache__" in file.parts or file.name in ("RECORD", "direct_url.json", "INSTALLER", "REQUESTED"):
                continue
            path = f"{stem}.data/scripts/{file.name}" if file.parts[0] == ".." else str(file)
            wheel.write(str(file.locate()), path)
            record.append(path)
        own = f"{stem}.dist-info/RECORD"
        wheel.writestr(own, "".join(f"{path},,\n" for path in (*record, own)))
    return made


@dataclass
class Index:
    """Serves ``/NAME/PROJECT/`` for each of its indexes: NAME → the wheels in it. `asked` has every path asked for."""

    indexes: Mapping[str, Sequence[Path]]
    asked: list[str] = field(default_factory=list)

    def url(self, name: str) -> str:
        """Return the URL of the index `name`."""
        return f"http://127.0.0.1:{self._server.server_port}/{name}"

    def downloaded(self, part: str) -> bool:
        """Return whether a client fetched a whole file with this text in its name."""
        return any(part in path for path in self.asked if path.startswith("/files/"))

    def __enter__(self) -> Index:
        index = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                index._answer(self)

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def _answer(self, request: BaseHTTPRequestHandler) -> None:
        path = unquote(urlsplit(request.path).path)
        parts = path.strip("/").split("/")
        self.asked.append(path)
        body, kind = None, "text/html"
        wheels = {wheel.name: wheel for each in self.indexes.values() for wheel in each}
        if parts[0] == "files" and parts[1].endswith(".metadata"):
            with zipfile.ZipFile(wheels[parts[1].removesuffix(".metadata")]) as wheel:
                (name,) = [each for each in wheel.namelist() if re.fullmatch(r"[^/]+\.dist-info/METADATA", each)]
                body, kind = wheel.read(name), "text/plain"
            self.asked.remove(path)
        elif parts[0] == "files" and parts[1] in wheels:
            body, kind = wheels[parts[1]].read_bytes(), "application/zip"
        elif parts[0] in self.indexes and len(parts) == 2:
            project = f"{parts[1].replace('-', '_')}-"
            found = [wheel.name for wheel in self.indexes[parts[0]] if wheel.name.startswith(project)]
            if found:
                links = (f'<a href="/files/{name}" data-core-metadata="true">{name}</a>' for name in found)
                body = f"<html><body>{''.join(links)}</body></html>".encode()
        request.send_response(404 if body is None else 200)
        request.send_header("Content-Type", kind)
        request.send_header("Content-Length", str(len(body or b"")))
        request.end_headers()
        request.wfile.write(body or b"")

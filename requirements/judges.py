"""Installs judges.txt into the folder ``judges`` of the environment, which only tests/judges put on the path.

``.venv/bin/python requirements/judges.py``, run by `make judges`. Does nothing while the folder has what judges.txt
pins. An interrupted run leaves what was there before.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import check
import install

LOCK = Path(__file__).with_name("judges.txt")
FOLDER = Path(sys.prefix, "judges")


def main() -> None:
    """Install what is not there. Raises `install.Failure`."""
    lock = LOCK.read_text()
    wanted = hashlib.sha256(f"{sys.version}\n{lock}".encode()).hexdigest()
    stamp = FOLDER / ".installed"
    if stamp.is_file() and stamp.read_text() == wanted:
        return
    new = FOLDER.with_name("judges.new")
    shutil.rmtree(new, ignore_errors=True)
    if not Path(sys.prefix, "bin", "pip").exists():
        os.environ["ROLEMESH_PIP"] = Path(sys.prefix, ".made-by").read_text().strip()
    pinned = check.pinned(lock)
    print(f"installing the {len(pinned)} packages of requirements/judges.txt into {FOLDER}", flush=True)
    command = install.pip("install", "--quiet", "--no-deps", "--target", str(new), "--requirement", str(LOCK))
    if subprocess.run(command, check=False).returncode:
        raise install.Failure("pip could not install them; its message is above", install.COMMAND)
    sys.path.append(str(new))
    if problems := check.problems(pinned):
        raise install.Failure("; ".join(problems), "correct requirements/judges.txt")
    (new / stamp.name).write_text(wanted)
    shutil.rmtree(FOLDER, ignore_errors=True)
    new.rename(FOLDER)


if __name__ == "__main__":
    try:
        main()
    except install.Failure as failure:
        sys.exit(str(failure))

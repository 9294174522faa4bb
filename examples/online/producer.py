"""Replays the clicks of `clicks.py` into the streams, each once: ``python producer.py [--events N] [--per-second N]``.

It may be killed, and so may the broker: event n goes to stream n modulo their number, so the last entry of a stream
says what comes next. ``--files DIR`` writes the same events as JSON lines instead, for `rolemesh-files`.
"""

import argparse
import json
import os
import time
from contextlib import ExitStack
from pathlib import Path

import redis
from clicks import events

PIPELINE = 200
"""Events that are sent together."""


def next_of(broker, streams):
    """The number of the next event of each stream, as far as the broker has them."""
    found = []
    for number, stream in enumerate(streams):
        last = broker.xrevrange(stream, count=1)
        found.append(json.loads(last[0][1][b"data"])["n"] + len(streams) if last else number)
    return found


def produce(url, streams, count, per_second, seed, period):
    """Send events 0 to `count` that are not there yet, and the key that says so."""
    broker = redis.Redis.from_url(url, socket_timeout=20)
    due, began, sent = None, time.monotonic(), 0
    while True:
        try:
            if due is None:
                due = next_of(broker, streams)
            if min(due) >= count:
                broker.set(streams[0].rpartition(":")[0] + ":done", count)
                return
            first = min(due)
            rows = events(first, min(PIPELINE, count - first), seed, period)
            pipe = broker.pipeline(transaction=False)
            for row in rows:
                if row["n"] >= due[row["n"] % len(streams)]:
                    pipe.xadd(streams[row["n"] % len(streams)], {"data": json.dumps(row | {"at": time.time()})})
            pipe.execute()
            for row in rows:
                stream = row["n"] % len(streams)
                due[stream] = max(due[stream], row["n"] + len(streams))
            sent += len(rows)
            if per_second:
                time.sleep(max(began + sent / per_second - time.monotonic(), 0))
        except (redis.ConnectionError, redis.TimeoutError) as error:
            if due is not None:
                print(f"the broker is away ({error}); what is not there is sent again", flush=True)
            due = None
            time.sleep(0.1)


def write(folder, files, count, seed, period):
    """The same events as JSON lines; `_DONE` says that there are no more."""
    folder.mkdir(parents=True, exist_ok=True)
    with ExitStack() as opened:
        outs = [opened.enter_context((folder / f"{number}.jsonl").open("w")) for number in range(files)]
        for first in range(0, count, 1000):
            for row in events(first, min(1000, count - first), seed, period):
                outs[row["n"] % files].write(json.dumps(row | {"at": time.time()}) + "\n")
    (folder / "_DONE").touch()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--url", default=os.environ.get("REDIS_URL", "redis://127.0.0.1:6390"))
    parser.add_argument("--streams", nargs="+", default=["clicks:0", "clicks:1"])
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("--per-second", type=float, default=5000, help="0: as fast as it goes")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--period", type=int, default=1_000_000, help="events in which tastes turn once")
    parser.add_argument("--files", type=Path, help="write JSON lines into this folder instead")
    given = parser.parse_args()
    if given.files:
        write(given.files, len(given.streams), given.events, given.seed, given.period)
    else:
        produce(given.url, given.streams, given.events, given.per_second, given.seed, given.period)


if __name__ == "__main__":
    main()

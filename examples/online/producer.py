"""Replays the clicks of `clicks.py` into the streams, each once: ``python producer.py [--events N] [--per-second N]``.

The producer and the broker may be killed. Event n goes to stream n modulo the number of streams, so the last entry of a
stream says which event comes next. A URL that begins with nats:// names a NATS server instead of a Redis. ``--files
DIR`` writes the same events as JSON lines instead, for the source `files`.
"""

import argparse
import asyncio
import json
import os
import time
from contextlib import ExitStack
from pathlib import Path

from clicks import events

TOGETHER = 200
"""Number of events that are sent together."""


class RedisStreams:
    """The streams of a Redis. A key marks their end."""

    def __init__(self, url, streams):
        import redis

        self.streams = streams
        self.redis = redis.Redis.from_url(url, socket_timeout=20)
        self.away = (redis.ConnectionError, redis.TimeoutError)

    def due(self):
        """Return the number of the next event of each stream, from the broker's last entries."""
        found = []
        for number, stream in enumerate(self.streams):
            last = self.redis.xrevrange(stream, count=1)
            found.append(json.loads(last[0][1][b"data"])["n"] + len(self.streams) if last else number)
        return found

    def send(self, rows):
        """Append the events to their streams."""
        pipe = self.redis.pipeline(transaction=False)
        for row in rows:
            pipe.xadd(self.streams[row["n"] % len(self.streams)], {"data": json.dumps(row)})
        pipe.execute()

    def finish(self, count):
        """Mark the end of the streams."""
        self.redis.set(self.streams[0].rpartition(":")[0] + ":done", count)


class NatsStreams:
    """The streams of a NATS server. The producer seals them at their end.

    The last message's number says how many messages a stream has had, purged ones included. Each message names its
    number, so none gets in twice, however late the server answers.
    """

    def __init__(self, url, streams):
        import nats

        self.nats, self.url, self.streams, self.loop = nats, url, streams, asyncio.new_event_loop()
        self.connection, self.away = None, (nats.errors.Error, OSError)

    def due(self):
        """See `RedisStreams.due`."""
        return self.loop.run_until_complete(self._due())

    def send(self, rows):
        """See `RedisStreams.send`."""
        self.loop.run_until_complete(self._send(rows))

    def finish(self, count):
        """See `RedisStreams.finish`."""
        self.loop.run_until_complete(self._seal())

    async def _due(self):
        if self.connection is not None:
            await self.connection.close()
        self.connection = await self.nats.connect(self.url, allow_reconnect=False, error_cb=_silent)
        self.jetstream = self.connection.jetstream(timeout=20)
        found = []
        for number, stream in enumerate(self.streams):
            made = await self.jetstream.add_stream(name=stream, subjects=[stream])
            found.append(made.state.last_seq * len(self.streams) + number)
        return found

    async def _send(self, rows):
        answers = []
        for row in rows:
            before, stream = divmod(row["n"], len(self.streams))
            headers = {"Nats-Expected-Last-Sequence": str(before)}
            data = json.dumps(row).encode()
            answers.append(await self.jetstream.publish_async(self.streams[stream], data, headers=headers))
        await asyncio.wait_for(asyncio.gather(*answers), 20)

    async def _seal(self):
        for stream in self.streams:
            info = await self.jetstream.stream_info(stream)
            if not info.config.sealed:
                await self.jetstream.update_stream(info.config.evolve(sealed=True))
        await self.connection.close()


async def _silent(error):
    """Ignore the exception here: the waiting caller gets it, too."""


def produce(broker, count, per_second, seed, period):
    """Send the missing ones of the events 0 to `count`, and mark the end."""
    due, began, sent, streams = None, time.monotonic(), 0, len(broker.streams)
    while True:
        try:
            if due is None:
                due = broker.due()
            if min(due) >= count:
                broker.finish(count)
                return
            first = min(due)
            rows = events(first, min(TOGETHER, count - first), seed, period)
            broker.send([row | {"at": time.time()} for row in rows if row["n"] >= due[row["n"] % streams]])
            for row in rows:
                due[row["n"] % streams] = max(due[row["n"] % streams], row["n"] + streams)
            sent += len(rows)
            if per_second:
                time.sleep(max(began + sent / per_second - time.monotonic(), 0))
        except broker.away as error:
            if due is not None:
                print(f"the broker is away ({error}); what is not there is sent again", flush=True)
            due = None
            time.sleep(0.1)


def write(folder, files, count, seed, period):
    """Write the same events as JSON lines; `_DONE` marks their end."""
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
    parser.add_argument("--streams", nargs="+", help="default: clicks:0 and clicks:1; CLICKS-0 and CLICKS-1 of NATS")
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("--per-second", type=float, default=5000, help="0: as fast as it goes")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--period", type=int, default=1_000_000, help="events in which tastes turn once")
    parser.add_argument("--files", type=Path, help="write JSON lines into this folder instead")
    given = parser.parse_args()
    kind, streams = RedisStreams, given.streams or ["clicks:0", "clicks:1"]
    if given.url.startswith("nats"):
        kind, streams = NatsStreams, given.streams or ["CLICKS-0", "CLICKS-1"]
    if given.files:
        write(given.files, len(streams), given.events, given.seed, given.period)
    else:
        produce(kind(given.url, streams), given.events, given.per_second, given.seed, given.period)


if __name__ == "__main__":
    main()

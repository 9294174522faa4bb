"""Programs that a hostile or careless model may write. Each bounds itself, so that a weak sandbox harms no machine."""

from __future__ import annotations

from typing import Final

__all__ = ["ASK", "BOMB", "DEEP", "FILL", "HOG", "ORPHAN", "PRINT", "SLEEP"]

ASK: Final = """
import os, socket, sys
mine, other, file = sys.argv[1:]
print(socket.create_connection(("127.0.0.1", int(mine)), 10).recv(100).decode())
try:
    socket.create_connection(("127.0.0.1", int(other)), 5)
    print("reached")
except OSError:
    print("refused")
print(os.environ["GIVEN"], sys.stdin.read(), open(file).read())
print("an error", file=sys.stderr)
"""
"""Asks the server at its first argument, tries the port in the second one, and reads the file in the third one."""
SLEEP: Final = "import sys, time\ntime.sleep(60)\n"
"""Sleeps for a minute. The test finds the process by its arguments."""
ORPHAN: Final = """
import os, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.close(1)
        os.close(2)
        time.sleep(60)
    os._exit(0)
os.wait()
"""
"""Leaves a process behind that has a session of its own and no open output. It ends after a minute."""
BOMB: Final = """
import os, sys, time
made = 0
for _ in range(int(sys.argv[1])):
    try:
        if os.fork() == 0:
            time.sleep(3)
            os._exit(0)
        made += 1
    except OSError:
        break
time.sleep(0.5)
print("made", made)
"""
"""Makes as many processes as its argument says. They end after 3 seconds."""
HOG: Final = """
import sys
kept = []
for _ in range(int(sys.argv[1])):
    kept.append(bytearray(b"x" * 1_000_000))
print("survived")
"""
"""Takes as many megabytes as its argument says."""
FILL: Final = """
import sys, time
for number in range(int(sys.argv[1])):
    with open(f"full-{number}", "wb") as file:
        file.write(b"x" * 1_000_000)
time.sleep(1)
print("survived")
"""
"""Writes as many files of 1 MB as its argument says."""
PRINT: Final = """
import os, sys
for _ in range(int(sys.argv[1])):
    data = b"y" * 1_000_000
    while data:
        data = data[os.write(1, data):]
"""
"""Prints as many megabytes as its argument says."""
DEEP: Final = """
import os
os.mkdir("closed", 0)
for _ in range(1200):
    os.mkdir("deeper")
    os.chdir("deeper")
"""
"""Makes a tree that is deeper than a path can be long, and a folder without permissions."""

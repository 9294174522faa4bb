"""The faults that a rehearsal sets in a process, and their end."""

from __future__ import annotations

import json
import subprocess
import sys

SCRIPT = """
import errno, json, os, sys, tempfile, time
from rolemesh_durable.extensions.rehearsal import faults

faults.LASTING_S = 0.05
seen = {}
with tempfile.TemporaryDirectory() as folder:
    fd = os.open(os.path.join(folder, "x"), os.O_RDWR | os.O_CREAT)
    faults.fill([os.getpid()])
    try:
        os.write(fd, b"x")
    except OSError as error:
        seen["full"] = errno.errorcode[error.errno]
    while True:
        try:
            seen["later"] = os.write(fd, b"x")
            break
        except OSError:
            pass
before = time.time()
faults.step_clock()
seen["forward"] = round(time.time() - before)
faults.step_clock()
seen["back"] = round(time.time() - before)
faults.fill([1 << 30])
print(json.dumps(seen))
"""


def test_files_stop_growing_for_a_while_and_the_clock_steps_there_and_back() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == {"full": "EFBIG", "later": 1, "forward": 3600, "back": 0}

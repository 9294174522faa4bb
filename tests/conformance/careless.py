"""A module whose import breaks the rules: it imports a heavy library, prints, and starts a thread."""

from __future__ import annotations

import threading
import time

import matplotlib

print("imported", matplotlib.__version__)
threading.Thread(target=time.sleep, args=(60,), daemon=True, name="careless").start()

"""Classes that cannot become environments. They need no package of OpenEnv."""

from __future__ import annotations

import sys
import time


class Hangs:
    def __init__(self) -> None:
        time.sleep(3)


class Exits:
    def __init__(self) -> None:
        sys.exit(3)

"""``python -m rolemesh.cli``."""

import sys

from rolemesh.cli import main

if __name__ == "__main__":
    sys.exit(main())

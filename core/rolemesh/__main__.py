"""``python -m rolemesh``."""

from rolemesh.cli import main

if __name__ == "__main__":
    raise SystemExit(main())

"""``python -m rolemesh.cli``."""

from rolemesh.cli import main

if __name__ == "__main__":
    raise SystemExit(main())

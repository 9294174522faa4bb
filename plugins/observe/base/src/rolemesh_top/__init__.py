"""A job in the terminal. Importing this package does not import textual."""

from rolemesh_top.command import TopVerb

__all__ = ["TopVerb"]

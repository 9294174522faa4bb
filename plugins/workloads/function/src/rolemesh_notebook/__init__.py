"""Roles from the cells of a notebook: `cell` returns an import string for a class or function of ``__main__``."""

from __future__ import annotations

from rolemesh_notebook.cells import cell

__all__ = ["cell"]

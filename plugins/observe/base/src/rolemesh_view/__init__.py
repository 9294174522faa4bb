"""Web pages about jobs, served by a process of their own from the folders of runs."""

from rolemesh_view.server import application

__all__ = ["application"]

"""The facts of a run, read from its folder: for viewers, reports and terminals. Nothing here asks a master."""

from rolemesh_facts.run import RunFacts

__all__ = ["RunFacts"]

"""Rehearsals: somebody injects failures into a job, and says how far its ranks run before each of them."""

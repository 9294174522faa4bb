"""Rehearsals: a test injects failures into a job, and limits how far its ranks run before each of them."""

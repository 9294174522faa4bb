"""Rehearsals: seeded failures in a running job (``rolemesh run --chaos``), and their cost."""

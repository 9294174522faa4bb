"""Stragglers: ranks that are slower than the others of their role, for long enough to matter."""

"""The standard tests of observers, and their helpers."""

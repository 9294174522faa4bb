"""The standard tests of examinations, and their helpers."""

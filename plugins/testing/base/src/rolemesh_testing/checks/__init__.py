"""The standard tests of checks, and their helpers."""

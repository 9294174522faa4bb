"""The standard tests of commands, and their helpers."""

"""The standard tests of the declaration of a kind, and their helpers."""

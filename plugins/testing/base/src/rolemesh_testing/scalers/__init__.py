"""The standard tests of scalers, and their helpers."""

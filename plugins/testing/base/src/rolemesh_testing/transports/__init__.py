"""The standard tests of transports, and their helpers."""

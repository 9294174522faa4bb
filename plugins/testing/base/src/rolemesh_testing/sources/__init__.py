"""The standard tests of sources."""

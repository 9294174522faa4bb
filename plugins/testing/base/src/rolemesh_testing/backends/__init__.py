"""The standard tests of backends."""

"""The standard tests of extensions, and the rank that they run in."""

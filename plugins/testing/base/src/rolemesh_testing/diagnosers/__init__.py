"""The standard tests of diagnosers."""

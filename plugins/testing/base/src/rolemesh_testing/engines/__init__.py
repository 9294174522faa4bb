"""The standard tests of engines, and the jobs that they run."""

"""The standard tests of sandboxes."""

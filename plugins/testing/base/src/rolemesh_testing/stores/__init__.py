"""The standard tests of stores."""

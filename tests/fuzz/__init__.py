"""Fuzz targets: every decoder of bytes from outside refuses what is no input of its kind with a declared error."""

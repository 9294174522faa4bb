"""Plugins of seven kinds for rolemesh, by an author outside of its repository."""

"""The real code that keeps snapshots in memory, on disk and on other nodes, over a file system that fails."""

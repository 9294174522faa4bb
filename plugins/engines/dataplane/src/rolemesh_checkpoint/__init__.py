"""The data that a rank leaves for its successor: snapshots in memory and on disk, and the log of sent values."""

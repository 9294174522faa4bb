"""What a rank leaves behind for its successor: snapshots in memory and on disk, and the log of what it has sent."""

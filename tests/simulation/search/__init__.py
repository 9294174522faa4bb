"""A search for schedules that break: what it has not seen yet leads it; what breaks becomes small, and a story."""

"""``rolemesh sql``: query a run's record, events, metrics and rows.

`tables` describes the tables, `contents` reads the run, and `database` holds a copy in memory.
Queries reach nothing but this copy.
"""

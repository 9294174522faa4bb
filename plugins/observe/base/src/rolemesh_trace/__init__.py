"""``rolemesh trace``: a job's record as a file for Perfetto.

`lanes` reads the record, `arrows` and `shares` decide what to draw, `packets` knows the format.
"""

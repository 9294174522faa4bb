"""Records where the time of each rank went, into files in the run's folder.

`lines` describes the files, and `reading` reads them, also while they are written and after a kill.
"""

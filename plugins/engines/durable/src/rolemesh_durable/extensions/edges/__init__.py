"""Transports of single edges: the job file names them under ``engine.options.transports.each``."""

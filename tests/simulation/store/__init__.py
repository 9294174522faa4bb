"""The real journal, publication and readers of masters that are killed, over a database, disk and clocks that fail."""

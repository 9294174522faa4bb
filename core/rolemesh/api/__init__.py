"""What an author derives from or handles: the contract of every kind of plugin but engines, and the
values on edges."""

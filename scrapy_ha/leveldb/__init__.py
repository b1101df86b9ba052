"""LevelDB in a directory of its own: owned by one process, checked before it is touched."""

"""Logs on disk: numbered segments that are only ever appended to."""

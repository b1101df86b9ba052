"""Errors of the package.

::

    HAError
    ├── SettingError          a setting's value is refused (also a ValueError)
    ├── Unserializable        a request or item that cannot be stored (also a ValueError)
    ├── BadRecord             stored bytes that are not what they should be (also a ValueError)
    └── StoreError            a store on disk or on a server
        ├── StoreLocked       another process owns it
        ├── StoreDamaged      it is damaged, foreign or of a newer format; it was left untouched
        ├── StoreFull         no space is left; what was stored before is whole
        └── ClientMissing     its client library is not installed (also an ImportError)
"""

from __future__ import annotations


class HAError(Exception):
    """Base of every error that the package raises on purpose."""


class SettingError(HAError, ValueError):
    """A setting has a value that is not allowed; the message names setting, value and range."""


class Unserializable(HAError, ValueError):
    """Something cannot be stored.

    Attributes:
        kind: A short, stable name of the reason, fit for counting and for «once per kind».
    """

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


class BadRecord(HAError, ValueError):
    """Stored bytes do not decode to what they should hold. Nothing in them was executed."""


class StoreError(HAError):
    """A store failed; the message says which, where, and what to do."""


class StoreLocked(StoreError):
    """Another process owns the store."""


class StoreDamaged(StoreError):
    """The store is damaged, foreign, or of a newer format. It was left untouched."""


class StoreFull(StoreError):
    """No space is left. What was stored before is whole."""


class ClientMissing(StoreError, ImportError):
    """A store's client library is not installed; the message names what to install."""

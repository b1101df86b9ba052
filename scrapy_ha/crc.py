"""CRC-32C (Castagnoli), as in RFC 3720, appendix B.4."""

from __future__ import annotations

from google_crc32c import extend, value

__all__ = ["crc32c", "extend"]

crc32c = value
"""``crc32c(data) -> int``. ``extend(crc, more)`` is that of what *crc* was made of with *more* behind it."""

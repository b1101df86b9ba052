"""CRC-32C (Castagnoli), as in RFC 3720, appendix B.4."""

from __future__ import annotations

from collections.abc import Callable

import google_crc32c

crc32c: Callable[[bytes], int] = google_crc32c.value
"""Of some bytes."""
extend: Callable[[int, bytes], int] = google_crc32c.extend
"""``extend(crc, more)`` is that of what *crc* was made of with *more* behind it."""

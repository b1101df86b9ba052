"""What a directory with a LevelDB holds. Needs no LevelDB."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Kind:
    """What a directory holds."""

    name: str
    """In ``FORMAT.json``: ``scrapy_ha`` and :attr:`word`, say."""
    word: str
    """In messages, after "the": ``frontier``."""
    format: int
    """Raised with every change that an older version could not read."""
    lost: str
    """What it means that the last writes are gone."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """LevelDB's, where they differ from :data:`.directory.OPTIONS`."""

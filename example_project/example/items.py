from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Page:
    url: str
    title: str
    links: int
    """Links on the page, to anywhere."""
    text_length: int
    """Characters of text."""

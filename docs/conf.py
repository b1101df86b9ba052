"""Sphinx configuration: stock theme, nothing from the network."""

from __future__ import annotations

from importlib.metadata import version as installed
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sphinx.application import Sphinx

project = "scrapy_ha"
author = "scrapy_ha contributors"
copyright = author
release = version = installed("scrapy-ha")

html_theme = "alabaster"
html_theme_options = {"description": "Crawls that survive kill -9", "fixed_sidebar": True}
html_sidebars = {"**": ["about.html", "navigation.html", "searchfield.html"]}
html_show_copyright = False
exclude_patterns = ["_build"]


def setup(app: Sphinx) -> None:
    app.add_crossref_type("setting", "setting", indextemplate="pair: %s; setting")

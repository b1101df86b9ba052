"""Local feed files: opened to go on in them, or with what they held kept."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, cast

from scrapy.extensions.feedexport import FileFeedStorage

from scrapy_ha.feeds import formats
from scrapy_ha.feeds.files import FeedFiles, differs, mend_last_line, set_aside, store_error

if TYPE_CHECKING:
    from scrapy import Spider

logger = logging.getLogger(__name__)


class LocalFeedStorage(FileFeedStorage):
    """Put on top of a project's storage class for local files, see :func:`on_top_of`."""

    files: FeedFiles
    exporters: dict[str, Any]
    own_open: bool
    """The project's class opens files in a way of its own."""

    def __init__(
        self, uri: str, *args: Any, feed_options: dict[str, Any] | None = None, **kwargs: Any
    ) -> None:
        super().__init__(uri, *args, feed_options=feed_options, **kwargs)
        options = feed_options or {}
        self._exporter = self.exporters.get(options.get("format", ""))
        self._encoding = options.get("encoding")
        self._postprocessed = "postprocessing" in options
        self._goes_on = False
        self.keep = False
        """What the file holds may be of this crawl: it is not to be overwritten."""

    def gap(self) -> str | None:
        """Why the file cannot be continued; ``None`` if it can."""
        if self._postprocessed:
            return "what postprocessing writes cannot be cut back"
        if self.own_open:
            return f"{type(self).__name__} opens files in its own way"
        if not formats.continuable(self._exporter):
            name = getattr(self._exporter, "__name__", self._exporter)
            return f"it is not known how to continue what {name} writes"
        if os.path.exists(self.path) and not os.path.isfile(self.path):
            return "it is no ordinary file"
        return None

    def go_on(self, position: int, last: bytes) -> bool:
        """Cut the file back to *position*, and go on there; whether it is the file that was written.

        If it is another, what it holds is kept.

        Raises:
            OSError: It cannot be cut back.
        """
        why = differs(self.path, position, last)
        if why is not None:
            logger.warning(
                "The feed %s is not as the interrupted crawl left it: %s. It lacks what that crawl had "
                "written, unless you moved it elsewhere; what is there now is kept.",
                self.path,
                why,
            )
            self.keep = True
            return False
        os.truncate(self.path, position)
        self.write_mode = "ab"
        self._goes_on = True
        return True

    def open(self, spider: Spider) -> IO[bytes]:
        """The file to write to.

        Raises:
            StoreError: It cannot be opened.
        """
        if not self.files.active:
            return super().open(spider)
        if self.files.error is not None:
            return open(os.devnull, "wb")  # Scrapy opens feeds that are empty when the spider closes
        try:
            if self.gap() is not None:
                if self.files.resumed:
                    self._set_aside()
                return super().open(spider)
            if not self._goes_on:
                self._prepare()
            return cast("IO[bytes]", self.files.open(super().open(spider), self.path, self._goes_on))
        except OSError as error:
            raise store_error(error, self.path) from error

    def _prepare(self) -> None:
        Path(self.path).parent.mkdir(parents=True, exist_ok=True)
        if self.keep and os.path.isfile(self.path):
            whole = formats.line_check(self._exporter, self._encoding)
            if whole is None:
                self._set_aside()
            else:
                self.write_mode = "ab"
                cut = mend_last_line(self.path, whole)
                if cut:
                    logger.warning(
                        "The last line of the feed %s was torn: %d bytes were cut off", self.path, cut
                    )
        self.files.note(self.path, self.write_mode == "wb")

    def _set_aside(self) -> None:
        part = set_aside(self.path)
        if part is not None:
            logger.warning("The feed %s cannot be continued; what it held is now in %s", self.path, part)


def on_top_of(
    storage: type[FileFeedStorage], files: FeedFiles, exporters: dict[str, Any]
) -> type[LocalFeedStorage]:
    """:class:`LocalFeedStorage` over *storage*, under its name, which Scrapy puts into its stats."""
    attributes = {
        "files": files,
        "exporters": exporters,
        "own_open": storage.open is not FileFeedStorage.open,
        "__module__": storage.__module__,
    }
    return type(storage.__name__, (LocalFeedStorage, storage), attributes)

"""The class of a failure, from exceptions as download handlers wrap them and from statuses."""

from __future__ import annotations

import asyncio
import errno
import gzip
import socket
import ssl
import subprocess
import sys
import zlib
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from OpenSSL import SSL
from scrapy import exceptions as scrapy_exceptions
from scrapy.core.downloader.handlers.http11 import TunnelError
from twisted.internet import defer
from twisted.internet import error as tx
from twisted.python.failure import Failure
from twisted.web._newclient import ParseError, ResponseFailed, ResponseNeverReceived
from twisted.web.http import PotentialDataLoss, _DataLoss

from scrapy_ha.retry import FailureClass, classify_exception, classify_status


def caused(exception: BaseException, by: BaseException) -> BaseException:
    exception.__cause__ = by
    return exception


def made(name: str, *bases: type[BaseException], **attributes: Any) -> BaseException:
    """An exception whose class has the given full name, of a library that need not be there."""
    module, _, qualname = name.rpartition(".")
    cls = type(qualname, bases or (Exception,), {"__module__": module, **attributes})
    error: BaseException = cls()
    return error


def failed(*reasons: BaseException) -> BaseException:
    error: BaseException = ResponseFailed([Failure(reason) for reason in reasons])
    return error


@pytest.mark.parametrize(
    ("exception", "cls"),
    [
        (tx.DNSLookupError("no"), "dns"),
        (socket.gaierror(-2, "Name or service not known"), "dns"),
        (tx.ConnectionRefusedError(), "refused"),
        (ConnectionRefusedError(errno.ECONNREFUSED, "no"), "refused"),
        (OSError(errno.EHOSTUNREACH, "no route"), "connection"),
        (ConnectionResetError(), "connection"),
        (BrokenPipeError(), "connection"),
        (tx.NoRouteError(), "connection"),
        (tx.ConnectError(), "connection"),
        (tx.ConnectionLost(), "connection"),
        (failed(tx.ConnectionDone()), "connection"),
        (failed(SSL.SysCallError(-1, "Unexpected EOF")), "connection"),
        (failed(SSL.Error([("SSL routines", "", "unexpected eof while reading")])), "connection"),
        (failed(SSL.Error([("SSL routines", "", "wrong version number")])), "tls"),
        (failed(SSL.Error([("SSL routines", "", "wrong version number")]), tx.ConnectionLost()), "tls"),
        (ssl.SSLCertVerificationError(1, "expired"), "tls"),
        (ssl.SSLEOFError(8, "EOF occurred in violation of protocol"), "connection"),
        (made("service_identity.exceptions.VerificationError"), "tls"),
        (tx.TimeoutError(), "timeout"),
        (tx.TCPTimedOutError(), "timeout"),
        (TimeoutError(), "timeout"),
        (asyncio.TimeoutError(), "timeout"),
        (failed(tx.ConnectionLost(), _DataLoss()), "truncated"),
        (PotentialDataLoss(), "truncated"),
        (failed(ParseError("bad status line", b"")), "protocol"),
        (made("h2.exceptions.H2Error"), "protocol"),
        (gzip.BadGzipFile("not a gzipped file"), "decode"),
        (zlib.error("incorrect header check"), "decode"),
        (made("brotli.error"), "decode"),
        (TunnelError("407"), "proxy"),
        (scrapy_exceptions.NotSupported("scheme"), "permanent"),
        (scrapy_exceptions.IgnoreRequest("robots.txt"), "permanent"),
        (defer.CancelledError(), "permanent"),
        (FileNotFoundError(errno.ENOENT, "gone"), "permanent"),
        (OSError(errno.ENOSPC, "disk full"), "other"),
        (OSError("no number"), "other"),
        (ValueError("what else"), "other"),
        (failed(), "other"),
        (ResponseNeverReceived([]), "other"),
    ],
)
def test_exceptions_of_twisted_and_python(exception: BaseException, cls: str) -> None:
    """Bare, or as reasons inside Twisted's wrappers."""
    assert classify_exception(exception) is FailureClass(cls)


def test_wrapper_of_scrapy_counts_only_without_a_known_cause() -> None:
    """aiohttp reports every failed connection as refused; the cause tells."""
    if not hasattr(scrapy_exceptions, "DownloadConnectionRefusedError"):
        pytest.skip("this Scrapy wraps nothing")
    refused = scrapy_exceptions.DownloadConnectionRefusedError
    assert classify_exception(refused()) is FailureClass.REFUSED
    assert classify_exception(caused(refused(), ValueError())) is FailureClass.REFUSED
    assert classify_exception(caused(refused(), ssl.SSLError(1, "WRONG_VERSION_NUMBER"))) is FailureClass.TLS
    assert classify_exception(caused(refused(), ConnectionResetError())) is FailureClass.CONNECTION
    assert classify_exception(caused(refused(), OSError(errno.ENETUNREACH, ""))) is FailureClass.CONNECTION
    other = scrapy_exceptions.DownloadFailedError
    assert classify_exception(caused(other(), failed(tx.ConnectionLost()))) is FailureClass.CONNECTION
    assert classify_exception(caused(other(), failed())) is FailureClass.OTHER


@pytest.mark.parametrize(
    ("exception", "cls"),
    [
        (made("aiohttp.client_exceptions.ServerDisconnectedError"), "connection"),
        (made("aiohttp.client_exceptions.ClientPayloadError"), "truncated"),
        (made("aiohttp.client_exceptions.ServerTimeoutError", TimeoutError), "timeout"),
        (made("aiohttp.client_exceptions.ClientHttpProxyError"), "proxy"),
        (made("aiohttp.client_exceptions.InvalidURL", ValueError), "permanent"),
        (made("aiohttp.http_exceptions.HttpProcessingError"), "protocol"),
        (made("httpx.ReadTimeout", type(made("httpx.TimeoutException"))), "timeout"),
        (made("httpx2.ReadError", type(made("httpx2.NetworkError"))), "connection"),
        (made("httpx.ConnectError"), "refused"),
        (made("httpx.RemoteProtocolError", type(made("httpx.ProtocolError"))), "protocol"),
        (
            made("httpx.ProtocolError", __str__=lambda self: "disconnected without sending a response"),
            "connection",
        ),
        (made("nobody.TimeoutError"), "other"),
    ],
)
def test_libraries_that_need_not_be_installed(exception: BaseException, cls: str) -> None:
    """Classes are known by package and name, and by those of their bases."""
    assert classify_exception(exception) is FailureClass(cls)


def test_exceptions_held_as_arguments_count() -> None:
    """httpcore raises its own error with the original as an argument and no cause."""
    assert classify_exception(made("httpcore.ConnectError")) is FailureClass.REFUSED
    error = type(made("httpcore.ConnectError"))(ssl.SSLError(1, "WRONG_VERSION_NUMBER"))
    assert classify_exception(error) is FailureClass.TLS


@pytest.mark.skipif(sys.version_info < (3, 11), reason="exception groups came with Python 3.11")
def test_exception_groups_count() -> None:
    """Several addresses of a host may fail each in its own way."""
    group = eval("ExceptionGroup")("all attempts", [OSError("?"), ConnectionRefusedError()])
    assert classify_exception(group) is FailureClass.REFUSED


def test_behind_a_proxy_it_is_the_proxy_that_is_not_reached() -> None:
    """The request's own host is resolved and connected to by the proxy."""
    assert classify_exception(tx.ConnectionRefusedError(), proxied=True) is FailureClass.PROXY
    assert classify_exception(tx.DNSLookupError("no"), proxied=True) is FailureClass.PROXY
    assert classify_exception(tx.TimeoutError(), proxied=True) is FailureClass.TIMEOUT


def test_circles_end() -> None:
    """Causes and reasons may point back."""
    one, two = ValueError(), ResponseFailed([])
    one.__cause__, two.__cause__ = two, one
    two.reasons = [one, two, Failure(ConnectionResetError())]
    assert classify_exception(one) is FailureClass.CONNECTION


def test_depth_and_width_are_bounded() -> None:
    """A chain of a million causes, a list of a million reasons."""
    chain: BaseException = ConnectionResetError()
    for _ in range(100_000):
        chain = caused(ValueError(), chain)
    assert classify_exception(chain) is FailureClass.OTHER
    while chain.__cause__ is not None:  # freed step by step: the interpreter would recurse
        chain = chain.__cause__
    wide = ResponseFailed([ValueError() for _ in range(100_000)])
    assert classify_exception(wide) is FailureClass.OTHER


class Hostile(Exception):
    """Raises wherever it is looked at."""

    def __str__(self) -> str:
        raise RuntimeError("str")

    @property
    def reasons(self) -> Sequence[object]:
        raise RuntimeError("reasons")


_leaf = st.sampled_from(
    [Hostile, ValueError, ConnectionResetError, OSError, KeyError, tx.ConnectionLost, ssl.SSLError, SSL.Error]
).map(lambda cls: cls())
_odd = st.one_of(
    st.none(), st.integers(), st.text(), st.just([1]), st.just(iter("ab")), _leaf, _leaf.map(Failure)
)


@given(st.lists(_leaf, min_size=1), st.lists(_odd), _odd)
def test_never_raises(chain: list[BaseException], inner: list[object], value: object) -> None:
    """Whatever the exceptions are made of."""
    for outer, cause in pairwise(chain):
        outer.__cause__ = cause
    wrapper: Any = ResponseFailed(inner)
    wrapper.value = value
    wrapper.__cause__ = chain[0]
    assert isinstance(classify_exception(wrapper), FailureClass)


@pytest.mark.parametrize(
    ("statuses", "has_retry_after", "cls"),
    [
        ([200, 204, 301, 304], False, None),
        ([429], False, "throttled"),
        ([429, 503], True, "throttled"),
        ([500, 502, 503, 504, 520, 521, 522, 523, 524, 599, 408], False, "server"),
        ([500, 502, 408], True, "server"),
        ([401, 403, 407], False, "auth"),
        ([400, 404, 410, 451], False, "client"),
    ],
)
def test_statuses(statuses: list[int], has_retry_after: bool, cls: str | None) -> None:
    """429 and a 503 that says when to come back ask for patience."""
    expected = None if cls is None else FailureClass(cls)
    assert [classify_status(status, has_retry_after) for status in statuses] == [expected] * len(statuses)


def test_importing_loads_no_reactor_and_no_optional_library() -> None:
    """Neither is needed to know its exceptions."""
    script = (
        "import sys, scrapy_ha.retry;"
        "print({'twisted.internet.reactor', 'aiohttp', 'httpx', 'httpx2', 'h2'} & sys.modules.keys())"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "set()", done.stderr

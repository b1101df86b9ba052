"""From an exception or a status to the class of the failure.

Download handlers wrap what went wrong in layers, and differently: Twisted in lists of reasons,
aiohttp and httpx in chains of causes, Scrapy in exceptions of its own. The same fault gets the
same class from all of them. Exceptions are recognised by the names of their classes, so that
nothing has to be imported to know them.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator, Mapping
from enum import Enum


class FailureClass(str, Enum):
    """What kind of failure it was. The values are stored and stand in stats: they do not change."""

    DNS = "dns"
    """The name did not resolve."""
    REFUSED = "refused"
    """Nothing listens there."""
    CONNECTION = "connection"
    """The connection was reset or closed, or there was no route."""
    TLS = "tls"
    """The handshake failed, or the certificate was refused."""
    TIMEOUT = "timeout"
    TRUNCATED = "truncated"
    """The body ended early."""
    PROTOCOL = "protocol"
    """The answer was not HTTP."""
    DECODE = "decode"
    """The body could not be decompressed."""
    PROXY = "proxy"
    """The proxy was not reached, or opened no tunnel."""
    THROTTLED = "throttled"
    """The server asks for patience: 429, or 503 with ``Retry-After``."""
    SERVER = "server"
    """The server failed: 5xx, 408."""
    AUTH = "auth"
    """Credentials are missing or refused: 401, 403, 407."""
    CLIENT = "client"
    """Any other 4xx: the request itself is at fault."""
    CALLBACK = "callback"
    """A callback asked for the retry."""
    PERMANENT = "permanent"
    """It would fail in the same way ever again: unsupported scheme, too large, refused by a middleware."""
    OTHER = "other"
    """Not known here."""


def classify_status(status: int, has_retry_after: bool = False) -> FailureClass | None:
    """Class of a response by its status; ``None`` below 400: as such it is no failure.

    Args:
        has_retry_after: It says validly when to come back.
    """
    if status < 400:
        return None
    if status == 429 or (status == 503 and has_retry_after):
        return FailureClass.THROTTLED
    if status in {401, 403, 407}:
        return FailureClass.AUTH
    if status == 408 or status >= 500:
        return FailureClass.SERVER
    return FailureClass.CLIENT


def classify_exception(exception: BaseException, proxied: bool = False) -> FailureClass:
    """Class of a failed download. Never raises, whatever the exception is made of.

    Looks at the exception, its causes and those inside it, :data:`LOOK_AT_MOST` in all. Of
    what they say, the most telling counts (:data:`_TELLING`); what a wrapper says of itself
    counts only when nothing inside it is known: «connection refused» by aiohttp may be a failed
    handshake.

    Args:
        proxied: The request went through a proxy, so it is the proxy that was not resolved or
            not listening.
    """
    try:
        cls = _most_telling(exception)
    except Exception:  # attributes of exceptions are anybody's code; one failure must not hide another
        return FailureClass.OTHER
    if proxied and cls in {FailureClass.DNS, FailureClass.REFUSED}:
        return FailureClass.PROXY
    return cls


def _most_telling(exception: BaseException) -> FailureClass:
    found: set[FailureClass] = set()
    wrapper: FailureClass | None = None
    for one in _inside(exception):
        known = _known_class(one)
        if known is not None:
            found.add(known)
        elif wrapper is None:
            wrapper = _WRAPPERS_BY_NAME.get(_name_of(type(one)))
    return next((cls for cls in _TELLING if cls in found), wrapper or FailureClass.OTHER)


def _known_class(exception: BaseException) -> FailureClass | None:
    known = _KNOWN_BY_NAME.get(_name_of(type(exception)))
    if known is None and isinstance(exception, OSError):
        return _ERRNO.get(exception.errno or 0)
    # TLS cut off in the middle, and httpx where the server closed in place of an answer.
    if known is _C.TLS and "unexpected eof" in str(exception).lower():
        return _C.CONNECTION
    if known is _C.PROTOCOL and "disconnected without sending" in str(exception):
        return _C.CONNECTION
    return known


_C = FailureClass

LOOK_AT_MOST = 64
"""Exceptions looked at inside one: they may point at each other in circles."""

_TELLING = (
    _C.PERMANENT,
    _C.PROXY,
    _C.DNS,
    _C.TRUNCATED,
    _C.TLS,
    _C.DECODE,
    _C.TIMEOUT,
    _C.REFUSED,
    _C.PROTOCOL,
    _C.CONNECTION,
)
"""What says most comes first: every fault also ends the connection."""

_KNOWN: Mapping[FailureClass, str] = {
    _C.DNS: """
        scrapy.CannotResolveHostError  socket.gaierror  socket.herror
        twisted.DNSLookupError  twisted.UnknownHostError  twisted.DNSQueryTimeoutError
        twisted.DomainError  twisted.AuthoritativeDomainError  twisted.ResolverError
        aiohttp.ClientConnectorDNSError
    """,
    _C.REFUSED: "builtins.ConnectionRefusedError  twisted.ConnectionRefusedError",
    _C.CONNECTION: """
        builtins.ConnectionError
        twisted.ConnectionClosed  twisted.ConnectionAborted  twisted.NoRouteError
        aiohttp.ServerDisconnectedError  aiohttp.ClientConnectionResetError
        httpx.NetworkError  httpcore.NetworkError
        anyio.BrokenResourceError  anyio.ClosedResourceError  anyio.EndOfStream
        ssl.SSLEOFError  ssl.SSLZeroReturnError  ssl.SSLSyscallError
        OpenSSL.SysCallError  OpenSSL.ZeroReturnError
    """,
    _C.TLS: """
        ssl.SSLError  OpenSSL.Error
        twisted.SSLError  twisted.VerifyError  twisted.CertificateError
        service_identity.VerificationError  service_identity.CertificateError
        aiohttp.ServerFingerprintMismatch  aiohttp.ClientConnectorCertificateError
    """,
    _C.TIMEOUT: """
        scrapy.DownloadTimeoutError  builtins.TimeoutError  asyncio.TimeoutError
        twisted.TimeoutError  twisted.TCPTimedOutError
        aiohttp.ServerTimeoutError  httpx.TimeoutException  httpcore.TimeoutException
    """,
    _C.TRUNCATED: """
        scrapy.ResponseDataLossError  twisted._DataLoss  twisted.PotentialDataLoss
        aiohttp.ClientPayloadError  h2.InvalidBodyLengthError  http.IncompleteRead
    """,
    _C.PROTOCOL: """
        twisted.ParseError  twisted.BadHeaders  twisted._MalformedChunkedDataError
        aiohttp.HttpProcessingError
        httpx.ProtocolError  httpcore.ProtocolError  h11.ProtocolError  h2.H2Error  hpack.HPACKError
        scrapy.InvalidNegotiatedProtocol
    """,
    _C.DECODE: """
        gzip.BadGzipFile  zlib.error  lzma.LZMAError  brotli.error  struct.error  builtins.EOFError
        zstandard.ZstdError  compression.ZstdError  backports.ZstdError  _zstd.ZstdError
        builtins.UnicodeDecodeError  aiohttp.ContentEncodingError  httpx.DecodingError
    """,
    _C.PROXY: """
        scrapy.TunnelError  aiohttp.ClientProxyConnectionError  aiohttp.ClientHttpProxyError
        httpx.ProxyError  httpcore.ProxyError  socksio.ProtocolError  python_socks.ProxyError
    """,
    _C.PERMANENT: """
        scrapy.UnsupportedURLSchemeError  scrapy.NotSupported  scrapy.IgnoreRequest
        scrapy.DownloadCancelledError  scrapy.StopDownload
        twisted.SchemeNotSupported
        aiohttp.InvalidURL  aiohttp.NonHttpUrlClientError  httpx.UnsupportedProtocol  httpx.InvalidURL
        idna.IDNAError
        builtins.FileNotFoundError  builtins.IsADirectoryError  builtins.NotADirectoryError
    """,
}
"""Package and class; the modules in between are private and move."""

_WRAPPERS: Mapping[FailureClass, str] = {
    _C.REFUSED: """
        scrapy.DownloadConnectionRefusedError  aiohttp.ClientConnectorError  httpx.ConnectError
        httpcore.ConnectError
    """,
    _C.CONNECTION: "twisted.ConnectError  aiohttp.ClientConnectionError",
    _C.TLS: "aiohttp.ClientSSLError",
    _C.PROTOCOL: "aiohttp.ClientResponseError",
    _C.PERMANENT: "twisted.CancelledError",
}
"""What is also raised around something else, or for want of a better word."""

_ERRNO: Mapping[int, FailureClass] = {
    errno.ECONNREFUSED: _C.REFUSED,
    errno.ETIMEDOUT: _C.TIMEOUT,
    errno.ECONNRESET: _C.CONNECTION,
    errno.ECONNABORTED: _C.CONNECTION,
    errno.EPIPE: _C.CONNECTION,
    errno.ENETDOWN: _C.CONNECTION,
    errno.ENETUNREACH: _C.CONNECTION,
    errno.EHOSTDOWN: _C.CONNECTION,
    errno.EHOSTUNREACH: _C.CONNECTION,
}


def _by_name(table: Mapping[FailureClass, str]) -> dict[str, FailureClass]:
    return {name: cls for cls, names in table.items() for name in names.split()}


_KNOWN_BY_NAME = _by_name(_KNOWN)
_WRAPPERS_BY_NAME = _by_name(_WRAPPERS)


def _name_of(cls: type[BaseException]) -> str:
    """The nearest name among *cls* and its bases that the tables have; empty if none."""
    for base in cls.__mro__:
        package = base.__module__.partition(".")[0]
        if package in {"httpx2", "httpcore2"}:  # the same libraries, renamed
            package = package[:-1]
        name = f"{package}.{base.__qualname__}"
        if name in _KNOWN_BY_NAME or name in _WRAPPERS_BY_NAME:
            return name
    return ""


def _inside(exception: BaseException) -> Iterator[BaseException]:
    """*exception*, its causes, and the exceptions that it holds, outermost first."""
    waiting: list[object] = [exception]
    seen: set[int] = set()
    for one in waiting:  # it grows on the way
        if not isinstance(one, BaseException) or id(one) in seen:
            continue
        seen.add(id(one))
        yield one
        waiting += one.__cause__, getattr(one, "value", None)  # of a Twisted Failure
        for name in ("reasons", "exceptions", "args"):  # of Twisted, of exception groups, of httpcore
            members = getattr(one, name, None)
            if isinstance(members, (list, tuple)):
                waiting += members[:LOOK_AT_MOST]
        del waiting[LOOK_AT_MOST:]

"""Who may talk to this server at all: Host and Origin checks, and the headers of every answer. Pure ASGI.

chatd listens on loopback by default, but every web page a user visits can reach loopback too. Two
checks keep such pages out, before any route, body or upgrade is looked at:

- Host must name this server, or a page could point its own name at 127.0.0.1 (DNS rebinding).
- Origin, on WebSocket upgrades and on methods that change things, must be this server's own. Programs
  that are not browsers send none, and may: a request without Origin is refused only if a browser sent it
  (Sec-Fetch headers, or a cookie). A socket with a ticket may come from any origin: the ticket, which only
  a key can get, is all that counts there (`chatd.server.doorman`).
"""

import ipaddress
import re
from collections.abc import Iterable
from dataclasses import dataclass

from starlette.datastructures import Headers, MutableHeaders, QueryParams
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from chatd.errors import ChatdError, WrongHost, WrongOrigin
from chatd.server.http import error_response

TICKET = "ticket"
"""The query parameter that a ticket comes in: pages cannot give a socket any header."""
SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS", "TRACE"})
BROWSER_HEADERS = ("sec-fetch-site", "sec-fetch-mode", "cookie")
DEFAULT_PORTS = {"http": 80, "https": 443, "ws": 80, "wss": 443}
HTTP_SCHEMES = {"http": "http", "https": "https", "ws": "http", "wss": "https"}
LOOPBACK = ("localhost", "127.0.0.1", "[::1]")

FIXED_HEADERS = {
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
}


@dataclass(frozen=True, slots=True)
class Authority:
    """A host name or address in lower case, IPv6 in brackets, and a port."""

    name: str
    port: int


_AUTHORITY = re.compile(r"([a-z0-9._-]+|\[[0-9a-f:.]+\])(?::([0-9]{1,5}))?", re.IGNORECASE | re.ASCII)


def parse_authority(text: str, default_port: int) -> Authority | None:
    """``name``, ``name:port``, ``[v6]`` or ``[v6]:port``; None for anything else."""
    if (found := _AUTHORITY.fullmatch(text)) is None:
        return None
    name, port = found.groups()
    return Authority(name.lower(), default_port if port is None else int(port))


@dataclass(frozen=True, slots=True)
class Origin:
    """Scheme is http or https."""

    scheme: str
    host: Authority


def parse_origin(text: str) -> Origin | None:
    """An Origin header's value; None for ``null`` and whatever is not http or https."""
    scheme, separator, rest = text.partition("://")
    if not separator or scheme not in ("http", "https"):
        return None
    host = parse_authority(rest, DEFAULT_PORTS[scheme])
    return None if host is None else Origin(scheme, host)


class Addresses:
    """Which Host and Origin headers name this server.

    The loopback names and the bound address go with the port the connection came in on. A
    configured name (``chat.example.org`` or ``chat.example.org:8443``) goes with its own port, or
    with the default ones: that is what a proxy in front passes on. A server bound to all
    addresses also answers to any literal IP address, which no foreign page can pretend to be.
    """

    def __init__(self, bound_host: str, allowed_hosts: Iterable[str]) -> None:
        bound = f"[{bound_host.lower()}]" if ":" in bound_host else bound_host.lower()
        self._own = {*LOOPBACK, bound}
        self._any_address = bound in ("0.0.0.0", "[::]", "")
        self._configured = {
            authority
            for text in allowed_hosts
            for port in (80, 443)
            if (authority := parse_authority(text, port)) is not None
        }

    def is_ours(self, host: Authority, local_port: int | None) -> bool:
        if host in self._configured:
            return True
        is_own = host.name in self._own or (self._any_address and _is_address(host.name))
        return is_own and (local_port is None or host.port == local_port)

    def is_same(self, origin: Origin, own: Origin) -> bool:
        """``own`` is what the request was sent to, as far as it can be seen from here: behind a proxy that
        ends TLS the scheme and port of a configured name are the proxy's."""
        if own.host in self._configured:
            return origin.host in self._configured and origin.host.name == own.host.name
        return origin == own


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name.strip("[]"))
    except ValueError:
        return False
    return True


class Guard:
    """The outermost layer of the application."""

    def __init__(self, app: ASGIApp, addresses: Addresses) -> None:
        self._app = app
        self._addresses = addresses

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        error = self._refusal(scope, headers)
        policy = content_policy(headers["host"] if error is None else None)

        async def send_guarded(message: Message) -> None:
            if message["type"] in ("http.response.start", "websocket.http.response.start"):
                _secure(MutableHeaders(scope=message), policy)
            await send(message)

        if error is None:
            await self._app(scope, receive, send_guarded)
        else:
            await error_response(error)(scope, receive, send_guarded)

    def _refusal(self, scope: Scope, headers: Headers) -> ChatdError | None:
        scheme = HTTP_SCHEMES[scope["scheme"]]
        hosts = headers.getlist("host")
        host = parse_authority(hosts[0], DEFAULT_PORTS[scheme]) if len(hosts) == 1 else None
        if host is None:
            return MalformedHost("the request has no proper Host header")
        server = scope.get("server")
        if not self._addresses.is_ours(host, server[1] if server else None):
            return WrongHost(f"this server is not {hosts[0]!r}; --allowed-hosts adds names it answers to")
        if scope["type"] == "http" and scope["method"] in SAFE_METHODS:
            return None
        if scope["type"] == "websocket" and TICKET in QueryParams(scope.get("query_string", b"")):
            return None
        return self._origin_refusal(headers, Origin(scheme, host))

    def _origin_refusal(self, headers: Headers, own: Origin) -> ChatdError | None:
        origins = headers.getlist("origin")
        if not origins:
            if any(name in headers for name in BROWSER_HEADERS):
                return WrongOrigin("a browser must send Origin with this request")
            return None
        origin = parse_origin(origins[0]) if len(origins) == 1 else None
        if origin is None or not self._addresses.is_same(origin, own):
            return WrongOrigin("only this server's own page may do this")
        return None


class MalformedHost(WrongHost):
    """No Host header, an empty one, or more than one."""

    http_status = 400


def content_policy(host: str | None) -> str:
    """Nothing from elsewhere, nothing inline, and no text turned into markup or script but by the page's two
    policies: DOMPurify's, and the one for its service worker. ``host`` (checked) names the WebSocket's own
    address, which older browsers do not count as 'self'."""
    sockets = f" ws://{host} wss://{host}" if host else ""
    return (
        "default-src 'none'; script-src 'self'; style-src 'self'; font-src 'self'; "
        f"img-src 'self' data:; connect-src 'self'{sockets}; manifest-src 'self'; worker-src 'self'; "
        "require-trusted-types-for 'script'; trusted-types chatd dompurify; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )


def _secure(headers: MutableHeaders, policy: str) -> None:
    headers["content-security-policy"] = policy
    for name, value in FIXED_HEADERS.items():
        headers[name] = value

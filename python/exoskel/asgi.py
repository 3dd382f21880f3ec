"""Grid identity in ASGI applications behind ``exoskel front``.

`GridIdentity` believes what the front states in headers, if and only if the front's secret comes with it. The application finds the
client's certificates in ``scope["extensions"]["tls"]["client_cert_chain"]`` and an `Identity` in ``scope["state"]["grid_identity"]``::

    app = FastAPI()
    app.add_middleware(GridIdentity, secret="/etc/exoskel/front-secret")

    @app.post("/jobs")
    def submit(who: Annotated[Identity, Depends(require(fqan="/vo/group/Role=production"))]):
        return {"owner": who.dn}
"""

import base64
import binascii
import os
import re
import ssl
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any

from . import _core
from .identity import Identity

__all__ = ["GridIdentity", "Identity", "identity_of", "require"]

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]

_STATE = "grid_identity"
_SECRET = b"exoskel-front-secret"
_SUBJECT = b"exoskel-subject"
_ORGANISATION = b"exoskel-vo"
_ATTRIBUTES = b"exoskel-fqan"
_LIMITED = b"exoskel-limited"
_CERTIFICATE = b"client-cert"
_CHAIN = b"client-cert-chain"
# Fields that state who asks: all names that begin so, however they are spelled.
_OWN = (b"exoskel-", b"client-cert")
# Fields by which a client could speak for the front, as it removes them from what clients send.
_CLAIMS = (*_OWN, b"x-forwarded-", b"x-real-ip", b"forwarded")
# Many servers and gateways read other signs as the same: `_` for `-` in CGI's variables.
_SIGNS = re.compile(rb"[^0-9A-Za-z]")

# RFC 9651: a String (section 3.3.3), and a Byte Sequence (section 3.3.5).
_STRING = re.compile(rb'"((?:[ !#-\[\]-~]|\\["\\])*)"')
_BYTES = re.compile(rb":([A-Za-z0-9+/=]*):")
_SEPARATOR = re.compile(rb"[ \t]*,[ \t]*")

_FORBIDDEN = 403
# RFC 6455 section 7.4.1: a message that violates the policy.
_WEBSOCKET_POLICY = 1008


class GridIdentity:
    """ASGI middleware: who asks, as the front in front of this server has proven it.

    Requests that don't come from the front are refused with 403, WebSockets are closed, and the application doesn't see them. The
    front's secret never reaches the application.

    Parameters
    ----------
    app : ASGI application
        What is behind.
    secret : path
        The file with the secret that the front has too (``upstream.secret``), of mode 0600 or 0400.
    anonymous : bool
        Let requests of others through, without an identity and without the headers by which they claim one, or another address. For
        health checks that come directly; `require` refuses them.

    Raises
    ------
    CredentialError
        If the secret can't be read, is too short, or can be read by others.
    """

    def __init__(
        self, app: Application, *, secret: str | os.PathLike[str], anonymous: bool = False
    ) -> None:
        self._app = app
        self._secret = _core.SharedSecret(secret)
        self._anonymous = anonymous

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection."""
        kind = scope["type"]
        if kind == "lifespan":
            await self._app(scope, receive, send)
            return
        if kind not in {"http", "websocket"}:
            # Nobody could be asked for who they are there.
            raise ValueError(
                f"got a scope of the type {kind!r}, expected http, websocket or lifespan"
            )
        headers = list(scope["headers"])
        identity = None
        if self._is_from_front(headers):
            identity = _read(headers)
            if identity is None:
                # What the front states can always be read: this is some other program with its secret.
                await _refuse(scope, receive, send, "the identity in the headers can't be read")
                return
        elif not self._anonymous:
            await _refuse(scope, receive, send, "this server is reached through its front only")
            return
        await self._app(_scope(scope, headers, identity), receive, send)

    def _is_from_front(self, headers: Iterable[tuple[bytes, bytes]]) -> bool:
        got = [value for name, value in headers if _plain(name) == _SECRET]
        return len(got) == 1 and self._secret.matches(got[0])


def identity_of(scope: Scope) -> Identity | None:
    """Return who asks, or None if nobody has proven it.

    Parameters
    ----------
    scope : dict
        That of the request; ``request.scope`` in Starlette and FastAPI.

    Returns
    -------
    Identity or None
        The identity. ``rfc2253`` and what stands behind it are not known behind a front.
    """
    identity = (scope.get("state") or {}).get(_STATE)
    return identity if isinstance(identity, Identity) else None


def require(
    *,
    fqan: str | None = None,
    vo: str | None = None,
    dn: str | None = None,
    limited: bool | None = None,
) -> Callable[..., Identity]:
    """Make a FastAPI dependency that lets in who has all that is asked for, and gives the `Identity`.

    Parameters
    ----------
    fqan : str, optional
        An attribute, as policies write it: ``/vo/group/Role=production``, ``/vo/*``.
    vo : str, optional
        A virtual organisation, of which any attribute is enough.
    dn : str, optional
        A whole distinguished name in slash form.
    limited : bool, optional
        False refuses limited proxies, by which jobs must not be started.

    Returns
    -------
    callable
        For ``Depends``. Others get 403, nobody 401; a WebSocket is closed with 1008.

    Raises
    ------
    ValueError
        If the attribute is none.
    ImportError
        If FastAPI is not installed: ``pip install exoskel[fastapi]``.
    """
    from fastapi import HTTPException, WebSocketException
    from starlette.requests import HTTPConnection

    if fqan is not None:
        # Now, and not at the first request.
        _core.matching_attribute(fqan, [])

    def required(connection: HTTPConnection) -> Identity:
        identity = identity_of(connection.scope)
        fault = _lacking(identity, fqan, vo, dn, limited)
        if fault is None and identity is not None:
            return identity
        if connection.scope["type"] == "websocket":
            raise WebSocketException(_WEBSOCKET_POLICY, fault)
        raise HTTPException(401 if identity is None else _FORBIDDEN, fault)

    return required


def _lacking(
    identity: Identity | None,
    fqan: str | None,
    vo: str | None,
    dn: str | None,
    limited: bool | None,
) -> str | None:
    """Return what is missing, in words for the one who asked, or None."""
    if identity is None:
        return "nobody has proven who asks: this server is to be reached through its front"
    if fqan is not None and identity.attribute(fqan) is None:
        return f"this needs the attribute {fqan}; you showed: {', '.join(identity.fqans) or 'none'}"
    if vo is not None and not any(one.split("/")[1] == vo for one in identity.fqans):
        return f"this needs an attribute of {vo}; you showed: {', '.join(identity.fqans) or 'none'}"
    if dn is not None and identity.dn != dn:
        return f"this is for {dn}; you are {identity.dn}"
    if limited is False and identity.limited:
        return "this can't be done with a limited proxy"
    return None


def _scope(
    scope: Scope, headers: list[tuple[bytes, bytes]], identity: Identity | None
) -> dict[str, Any]:
    """Return a scope for the application. The server's own is not touched, since it may share parts of it between requests."""
    # Nobody's claims stay, and the secret never does.
    hidden = (_SECRET,) if identity else _CLAIMS
    changed = dict(scope)
    changed["headers"] = [one for one in headers if not _plain(one[0]).startswith(hidden)]
    changed["state"] = {**(scope.get("state") or {}), _STATE: identity}
    extensions = dict(scope.get("extensions") or {})
    chain = identity.chain if identity else ()
    # What the server behind says of certificates is about its own connection, which is the front's or a stranger's.
    of_server = {
        key: value
        for key, value in (extensions.get("tls") or {}).items()
        if not key.startswith("client_cert")
    }
    extensions["tls"] = {
        **of_server,
        "client_cert_chain": [ssl.DER_cert_to_PEM_cert(one) for one in chain],
    }
    changed["extensions"] = extensions
    return changed


def _read(headers: Iterable[tuple[bytes, bytes]]) -> Identity | None:
    """Read what the front states; None if any of it is missing, stands twice, is spelled otherwise, or can't be read."""
    fields: dict[bytes, bytes] = {}
    for name, value in headers:
        plain = _plain(name)
        if plain.startswith(_OWN):
            # The front has one spelling, and removes all others.
            if plain in fields or plain != name.lower():
                return None
            fields[plain] = value.strip()
    subject = _strings(fields.get(_SUBJECT, b""))
    organisation = _strings(fields.get(_ORGANISATION, b""))
    attributes = _strings(fields.get(_ATTRIBUTES, b""))
    leaf = _byte_sequences(fields.get(_CERTIFICATE, b""))
    others = _byte_sequences(fields.get(_CHAIN, b""))
    limited = fields.get(_LIMITED, b"?0")
    if subject is None or organisation is None or attributes is None:
        return None
    if leaf is None or others is None or limited not in {b"?0", b"?1"}:
        return None
    if len(subject) != 1 or len(organisation) > 1 or len(leaf) != 1:
        return None
    return Identity(
        dn=subject[0],
        vo=organisation[0] if organisation else None,
        fqans=tuple(attributes),
        limited=limited == b"?1",
        chain=(leaf[0], *others),
    )


def _plain(name: bytes) -> bytes:
    """Return a field's name as those servers read it that tell the fewest names apart."""
    return _SIGNS.sub(b"-", name).lower()


def _items(value: bytes, pattern: re.Pattern[bytes]) -> list[bytes] | None:
    """Take a List apart whose members are all of one kind; None if it is something else."""
    found: list[bytes] = []
    place = 0
    while place < len(value):
        if found:
            separator = _SEPARATOR.match(value, place)
            if separator is None:
                return None
            place = separator.end()
        item = pattern.match(value, place)
        if item is None:
            return None
        found.append(item[1])
        place = item.end()
    return found


def _strings(value: bytes) -> list[str] | None:
    items = _items(value, _STRING)
    if items is None:
        return None
    return [re.sub(rb"\\(.)", rb"\1", item).decode("ascii") for item in items]


def _byte_sequences(value: bytes) -> list[bytes] | None:
    items = _items(value, _BYTES)
    if items is None:
        return None
    try:
        return [base64.b64decode(item, validate=True) for item in items]
    except binascii.Error:
        return None


async def _refuse(scope: Scope, receive: Receive, send: Send, text: str) -> None:
    if scope["type"] == "websocket":
        # ASGI wants the opening message taken before the answer; a server then says 403.
        await receive()
        await send({"type": "websocket.close", "code": _WEBSOCKET_POLICY, "reason": text})
        return
    body = f"{text}\n".encode()
    headers = [
        (b"content-type", b"text/plain; charset=utf-8"),
        (b"content-length", str(len(body)).encode()),
    ]
    await send({"type": "http.response.start", "status": _FORBIDDEN, "headers": headers})
    await send({"type": "http.response.body", "body": body})

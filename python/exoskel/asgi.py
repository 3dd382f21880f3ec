"""Grid identity in ASGI applications behind ``exoskel front``.

`GridIdentity` believes what the front states in headers, if and only if the front's secret comes with it. The application finds the
client's certificates in ``scope["extensions"]["tls"]["client_cert_chain"]`` and a `Peer` in ``scope["state"]["grid_identity"]``::

    app = FastAPI()
    app.add_middleware(GridIdentity, secret="/etc/exoskel/front-secret")

    @app.post("/jobs")
    def submit(who: Annotated[Peer, Depends(require("submit"))]):
        return {"owner": who.dn}

Whether somebody may submit is said by the policy of the front. `Required` asks the same without FastAPI.
"""

import base64
import binascii
import os
import re
import ssl
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from functools import partial
from typing import Any, NamedTuple

from . import _core
from .identity import Identity, Peer

__all__ = ["GridIdentity", "Identity", "Peer", "Required", "identity_of", "require"]

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]

_STATE = "grid_identity"
# There if a request has come through the front, whoever asks.
_FRONT = "grid_front"
_SECRET = b"exoskel-front-secret"
_SUBJECT = b"exoskel-subject"
_ORGANISATION = b"exoskel-vo"
_ATTRIBUTES = b"exoskel-fqan"
_LIMITED = b"exoskel-limited"
_ACCOUNT = b"exoskel-account"
_ACTIONS = b"exoskel-actions"
_REFUSALS = b"exoskel-refusals"
# In an answer, for the front's audit trail: which action was refused, or which other requirement is not met.
_REFUSED = "Exoskel-Refused"
_UNMET = "Exoskel-Unmet"
_ANONYMOUS = b"exoskel-anonymous"
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
# A String with the parameter `why`, which is one too (section 3.1.2).
_REASON = re.compile(_STRING.pattern + rb";why=" + _STRING.pattern)
_BYTES = re.compile(rb":([A-Za-z0-9+/=]*):")
_ORGANISATION_NAME = re.compile(r"[0-9A-Za-z._@:+-]+")
_SEPARATOR = re.compile(rb"[ \t]*,[ \t]*")

# What the front says of actions that the policy doesn't name.
_ANY = "any"

_UNAUTHORIZED = 401
_FORBIDDEN = 403
# RFC 6455 section 7.4.1: a message that violates the policy.
_WEBSOCKET_POLICY = 1008


class _Lack(NamedTuple):
    """What somebody lacks for what they ask."""

    reason: str
    """In words for the one who asked."""
    headers: dict[str, str] | None = None
    """The field by which the front learns of it. It judges by itself, and keeps the field."""


class GridIdentity:
    """ASGI middleware: who asks, as the front in front of this server has proven it.

    Requests that don't come from the front are refused with 403, WebSockets are closed, and the application doesn't see them. The
    front's secret never reaches the application.

    Clients without a certificate reach the paths for which the front has ``certificate = false``. They have no identity.

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
        is_from_front = self._is_from_front(headers)
        # Nobody's claims stay, and the secret never does.
        hidden: tuple[bytes, ...] = _CLAIMS
        if is_from_front:
            identity = _read(headers)
            if identity is None and not _is_anonymous(headers):
                # What the front states can always be read: this is some other program with its secret.
                await _refuse(scope, receive, send, "the identity in the headers can't be read")
                return
            hidden = (_SECRET,) if identity else _OWN
        elif not self._anonymous:
            await _refuse(scope, receive, send, "this server is reached through its front only")
            return
        await self._app(_scope(scope, headers, identity, hidden, is_from_front), receive, send)

    def _is_from_front(self, headers: Iterable[tuple[bytes, bytes]]) -> bool:
        got = [value for name, value in headers if _plain(name) == _SECRET]
        return len(got) == 1 and self._secret.matches(got[0])


class Required:
    """ASGI middleware that lets in who has all that is asked for: what `require` is for FastAPI, for any application.

    It stands behind `GridIdentity`. Without any argument it lets in everybody whom the front lets connect. Others get 403, clients without
    an identity 401; WebSockets are closed. For each refusal over HTTP the front writes a line into its audit trail.

    Parameters
    ----------
    app : ASGI application
        What is behind.
    action : str, optional
        An action that the policy of the front has to allow.
    fqan, vo, dn, limited
        As for `require`.

    Raises
    ------
    ValueError
        As for `require`.
    """

    def __init__(
        self,
        app: Application,
        action: str | None = None,
        *,
        fqan: str | None = None,
        vo: str | None = None,
        dn: str | None = None,
        limited: bool | None = None,
    ) -> None:
        self._app = app
        self._lacking = _requirement(action, fqan, vo, dn, limited)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection."""
        if scope["type"] != "lifespan":
            lack = self._lacking(scope)
            if lack is not None:
                status = _FORBIDDEN if identity_of(scope) else _UNAUTHORIZED
                await _refuse(scope, receive, send, lack.reason, status, lack.headers)
                return
        await self._app(scope, receive, send)


def identity_of(scope: Scope) -> Peer | None:
    """Return who asks, or None if nobody has proven it.

    Parameters
    ----------
    scope : dict
        That of the request; ``request.scope`` in Starlette and FastAPI.

    Returns
    -------
    Peer or None
        The client, with what it may do by the policy of the front. ``rfc2253`` and what stands behind it are not known behind a front.
    """
    identity = (scope.get("state") or {}).get(_STATE)
    return identity if isinstance(identity, Peer) else None


def require(
    action: str | None = None,
    *,
    fqan: str | None = None,
    vo: str | None = None,
    dn: str | None = None,
    limited: bool | None = None,
) -> Callable[..., Peer]:
    """Make a FastAPI dependency that lets in who has all that is asked for, and gives the `Peer`.

    ``require()`` asks for nothing more than an identity: it lets in everybody whom the front lets connect. For each refusal over HTTP the
    front writes a line into its audit trail.

    Parameters
    ----------
    action : str, optional
        An action that the policy of the front has to allow: ``[[allow.rule]]`` with ``action = "submit"``. Whom it is refused is told the
        policy's reason.
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
        For ``Depends``. Others get 403, clients without an identity 401; a WebSocket is closed with 1008.

    Raises
    ------
    ValueError
        If it names something that can't be: no attribute, a pattern of names, an organisation with slashes.
    ImportError
        If FastAPI is not installed: ``pip install exoskel[fastapi]``.
    """
    from fastapi import HTTPException, WebSocketException
    from starlette.requests import HTTPConnection

    lacking = _requirement(action, fqan, vo, dn, limited)

    def required(connection: HTTPConnection) -> Peer:
        scope = connection.scope
        identity = identity_of(scope)
        lack = lacking(scope)
        if lack is None and identity is not None:
            return identity
        reason = None if lack is None else lack.reason
        if scope["type"] == "websocket":
            raise WebSocketException(_WEBSOCKET_POLICY, reason)
        status = _UNAUTHORIZED if identity is None else _FORBIDDEN
        raise HTTPException(status, reason, None if lack is None else lack.headers)

    return required


def _requirement(
    action: str | None,
    fqan: str | None,
    vo: str | None,
    dn: str | None,
    limited: bool | None,
) -> Callable[[Scope], _Lack | None]:
    """Return what says what whoever asks lacks. A requirement that can't be meant fails now, and not at the first request."""
    if action is not None and not action:
        raise ValueError("got an empty action, expected a name that the policy of the front has")
    if fqan is not None:
        _core.matching_attribute(fqan, [])
    if vo is not None and not _ORGANISATION_NAME.fullmatch(vo):
        raise ValueError(
            f"got vo={vo!r}, expected the name of a virtual organisation without slashes, like atlas"
        )
    # A certificate's star is the first label of hosts.
    if dn is not None and (dn[:1] != "/" or "=" not in dn or "*" in dn.replace("=*.", "=")):
        raise ValueError(
            f"got dn={dn!r}, expected a whole distinguished name like /DC=org/CN=Alice: patterns stand in the policy"
        )
    return partial(_lacking, action=action, fqan=fqan, vo=vo, dn=dn, limited=limited)


def _lacking(
    scope: Scope,
    *,
    action: str | None,
    fqan: str | None,
    vo: str | None,
    dn: str | None,
    limited: bool | None,
) -> _Lack | None:
    """Return what is missing first, or None."""
    identity = identity_of(scope)
    if identity is None and (scope.get("state") or {}).get(_FRONT):
        return _Lack(
            "this needs a client certificate that the service accepts: show a certificate or a proxy"
        )
    if identity is None:
        return _Lack("nobody has proven who asks: this server is to be reached through its front")
    refusal = None if action is None else identity.refusal(action)
    if action is not None and refusal is not None:
        return _Lack(refusal, {_REFUSED: f'"{action}"'})
    shown = ", ".join(identity.fqans) or "none"
    if fqan is not None and identity.attribute(fqan) is None:
        return _unmet(f"this needs the attribute {fqan}; you showed: {shown}", "fqan", fqan)
    if vo is not None and not any(one.split("/")[1] == vo for one in identity.fqans):
        return _unmet(f"this needs an attribute of {vo}; you showed: {shown}", "vo", vo)
    if dn is not None and identity.dn != dn:
        return _unmet(f"this is for {dn}; you are {identity.dn}", "dn", dn)
    if limited is False and identity.limited:
        return _Lack("this can't be done with a limited proxy", {_UNMET: "limited=?0"})
    return None


def _unmet(reason: str, key: str, wanted: str) -> _Lack:
    """Return what is lacking beside an action. The field is a Dictionary of RFC 9651, which takes printable ASCII."""
    if not (wanted.isascii() and wanted.isprintable()):
        return _Lack(reason)
    quoted = wanted.replace("\\", "\\\\").replace('"', '\\"')
    return _Lack(reason, {_UNMET: f'{key}="{quoted}"'})


def _scope(
    scope: Scope,
    headers: list[tuple[bytes, bytes]],
    identity: Peer | None,
    hidden: tuple[bytes, ...],
    is_from_front: bool,
) -> dict[str, Any]:
    """Return a scope for the application. The server's own is not touched, since it may share parts of it between requests."""
    changed = dict(scope)
    changed["headers"] = [one for one in headers if not _plain(one[0]).startswith(hidden)]
    state = {key: value for key, value in (scope.get("state") or {}).items() if key != _FRONT}
    changed["state"] = {**state, _STATE: identity, **({_FRONT: True} if is_from_front else {})}
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


def _is_anonymous(headers: Iterable[tuple[bytes, bytes]]) -> bool:
    """Return whether the front states that nobody has proven anything, and nothing else."""
    own = [(name.lower(), value) for name, value in headers if _plain(name).startswith(_OWN)]
    return sorted(one for one in own if one[0] != _SECRET) == [(_ANONYMOUS, b"?1")]


def _read(headers: Iterable[tuple[bytes, bytes]]) -> Peer | None:
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
    account = _strings(fields.get(_ACCOUNT, b""))
    actions = _strings(fields[_ACTIONS]) if _ACTIONS in fields else []
    reasons = _reasons(fields.get(_REFUSALS, b""))
    limited = fields.get(_LIMITED, b"?0")
    if account is None or len(account) > 1 or actions is None or reasons is None:
        return None
    if subject is None or organisation is None or attributes is None:
        return None
    if leaf is None or others is None or limited not in {b"?0", b"?1"}:
        return None
    if len(subject) != 1 or len(organisation) > 1 or len(leaf) != 1:
        return None
    return Peer(
        account=account[0] if account else None,
        reason_against=partial(
            _reason_against, subject[0], tuple(actions), reasons, _ACTIONS in fields
        ),
        dn=subject[0],
        vo=organisation[0] if organisation else None,
        fqans=tuple(attributes),
        limited=limited == b"?1",
        chain=(leaf[0], *others),
    )


def _reason_against(
    dn: str, actions: tuple[str, ...], reasons: dict[str, str], has_policy: bool, action: str
) -> str | None:
    """Return why an action is not among those that the front states; None if it is."""
    if (f"!{action}" not in actions) if _ANY in actions else (action in actions):
        return None
    if not has_policy:
        return f"this needs the action {action!r}, and the front has no policy that could allow it"
    said = f"this needs the action {action!r}, which the policy of the front does not allow {dn}"
    return reasons.get(action, said)


def _plain(name: bytes) -> bytes:
    """Return a field's name as those servers read it that tell the fewest names apart."""
    return _SIGNS.sub(b"-", name).lower()


def _items(value: bytes, pattern: re.Pattern[bytes]) -> list[re.Match[bytes]] | None:
    """Take a List apart whose members are all of one kind; None if it is something else."""
    found: list[re.Match[bytes]] = []
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
        found.append(item)
        place = item.end()
    return found


def _strings(value: bytes) -> list[str] | None:
    items = _items(value, _STRING)
    if items is None:
        return None
    return [_unescaped(item[1]) for item in items]


def _reasons(value: bytes) -> dict[str, str] | None:
    """Read why actions are refused."""
    items = _items(value, _REASON)
    return None if items is None else {_unescaped(item[1]): _unescaped(item[2]) for item in items}


def _unescaped(text: bytes) -> str:
    return re.sub(rb"\\(.)", rb"\1", text).decode("ascii")


def _byte_sequences(value: bytes) -> list[bytes] | None:
    items = _items(value, _BYTES)
    if items is None:
        return None
    try:
        return [base64.b64decode(item[1], validate=True) for item in items]
    except binascii.Error:
        return None


async def _refuse(
    scope: Scope,
    receive: Receive,
    send: Send,
    text: str,
    status: int = _FORBIDDEN,
    more: dict[str, str] | None = None,
) -> None:
    if scope["type"] == "websocket":
        # ASGI wants the opening message taken before the answer; a server then says 403.
        await receive()
        await send({"type": "websocket.close", "code": _WEBSOCKET_POLICY, "reason": text})
        return
    body = f"{text}\n".encode()
    headers = [
        (b"content-type", b"text/plain; charset=utf-8"),
        (b"content-length", str(len(body)).encode()),
        *((name.lower().encode(), value.encode()) for name, value in (more or {}).items()),
    ]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})

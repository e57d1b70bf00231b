"""/api/v1/admin/keys and /api/v1/admin/logins: keys, for the operator's commands."""

from typing import Any, Literal

from msgspec import Struct
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from chatd.errors import InvalidParameter
from chatd.ids import Namespace
from chatd.server.http import json_response, read_json
from chatd.server.keyring import LOGIN_TOKEN_S
from chatd.server.operators import operator_only
from chatd.server.state import AppState
from chatd.store.key_records import Budget, Key, KeyScope, KeyUse, Limits, Period
from chatd.store.key_rules import check_names
from chatd.store.records import rfc3339


class BudgetBody(Struct, frozen=True, forbid_unknown_fields=True):
    """``nano`` billionths of the currency that the server's prices are in."""

    nano: int
    period: Literal["day", "month"]


class KeyBody(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Without an account the key has one of its own, of its name. Null: no limit."""

    name: str
    account: str | None = None
    scopes: tuple[KeyScope, ...] = (KeyScope.CHAT, KeyScope.REPORT)
    requests_per_min: int | None = None
    tokens_per_min: int | None = None
    turns: int | None = None
    budget: BudgetBody | None = None

    def limits(self, currency: str) -> Limits:
        """InvalidParameter for one that is not above 0."""
        for name in ("requests_per_min", "tokens_per_min", "turns"):
            value = getattr(self, name)
            if value is not None and not 1 <= value < 2**53:
                raise InvalidParameter(f"{name} must be a whole number above 0", param=name)
        if self.budget is not None and not 0 <= self.budget.nano < 2**62:
            raise InvalidParameter("a budget is not negative", param="budget")
        wanted = self.budget
        budget = None if wanted is None else Budget(wanted.nano, Period(wanted.period), currency)
        return Limits(self.requests_per_min, self.tokens_per_min, self.turns, budget)


class LoginBody(Struct, frozen=True, forbid_unknown_fields=True):
    """Null: the operator's own page."""

    key: str | None = None


@operator_only
async def listing(request: Request, state: AppState) -> Response:
    return json_response({"keys": [key_of(key, use) for key, use in await state.store.keys.uses()]})


@operator_only
async def create(request: Request, state: AppState) -> Response:
    """The only answer that ever has a key's secret in it."""
    asked = await read_json(request, KeyBody)
    account = check_names(asked.name, asked.account)
    if not asked.scopes:
        raise InvalidParameter("a key needs a scope", param="scopes")
    was_open = state.keys.is_open
    limits = asked.limits(state.currency)
    key, secret = await state.keys.create(asked.name, Namespace(account), frozenset(asked.scopes), limits)
    state.show_out()  # with the first key, who has none
    return json_response({**key_of(key), "secret": secret, "first": was_open}, 201)


@operator_only
async def revoke(request: Request, state: AppState) -> Response:
    """Closes the key's sockets and ends its answers."""
    name = request.path_params["name"]
    key = await state.keys.revoke(name)
    state.show_out()
    if state.service is not None:
        state.service.end_answers(name)
    return json_response(key_of(key))


@operator_only
async def login(request: Request, state: AppState) -> Response:
    """A token for the page's login address."""
    token = state.keys.new_login_token((await read_json(request, LoginBody)).key)
    return json_response({"token": token, "expires_in": LOGIN_TOKEN_S}, 201)


def key_of(key: Key, use: KeyUse | None = None) -> dict[str, Any]:
    """A key as JSON, without any secret."""
    limits, budget = key.limits, key.limits.budget
    shown: dict[str, Any] = {
        "name": key.name,
        "account": key.account,
        "prefix": key.prefix,
        "scopes": sorted(key.scopes),
        "requests_per_min": limits.requests_per_min,
        "tokens_per_min": limits.tokens_per_min,
        "turns": limits.turns,
        "budget": budget and {"nano": budget.nano, "period": budget.period, "currency": budget.currency},
        "created_at": rfc3339(key.created_at),
        "revoked_at": None if key.revoked_at is None else rfc3339(key.revoked_at),
    }
    if use is not None:
        shown["use"] = {name: getattr(use, name) for name in KeyUse.__slots__}
    return shown


ROUTES = [
    Route("/api/v1/admin/keys", listing, methods=["GET"]),
    Route("/api/v1/admin/keys", create, methods=["POST"]),
    Route("/api/v1/admin/keys/{name}", revoke, methods=["DELETE"]),
    Route("/api/v1/admin/logins", login, methods=["POST"]),
]

"""/openapi.json: what there is over HTTP, made from the routes and from the types of what goes in and out.

Every route is in it. What a route takes and gives stands in `openapi_table`; one that is missing there is
described by its path and its docstring alone. The WebSocket's frames, for which OpenAPI has no words, are
under ``x-chatd-websocket``.
"""

import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, get_args

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Mount, Route

from chatd.server import params as rules
from chatd.server import protocol
from chatd.server.http import json_response
from chatd.server.openai_types import ErrorBody
from chatd.server.openapi_answers import NativeErrorBody
from chatd.server.openapi_table import TABLE, UNKNOWN, Operation, Query
from chatd.server.state import AppState

API = ("/api/", "/v1/", "/healthz", "/readyz", "/metrics", "/openapi.json")
PREFIX = "#/components/schemas/"
JSON = "application/json"
Schema = dict[str, Any]
WIRE = (protocol.ClientEvent, protocol.ServerEvent)


async def openapi(request: Request) -> Response:
    """This document."""
    state: AppState = request.app.state.chatd
    return json_response(document(request.app.routes, state.version, state.settings.root_path))


def document(routes: Iterable[BaseRoute], version: str, root_path: str = "") -> Schema:
    """The whole document for ``routes``, in OpenAPI 3.1."""
    found = list(api_routes(routes))
    schemas, components = _schemas(found)
    paths: dict[str, Schema] = {}
    for path, route in found:
        for method in sorted((route.methods or {"GET"}) - {"HEAD"}):
            paths.setdefault(path, {})[method.lower()] = _operation(method, path, route.endpoint, schemas)
    return {
        "openapi": "3.1.0",
        "info": {"title": "chatd", "version": version, "license": {"name": "Apache-2.0"}},
        "servers": [{"url": root_path or "/"}],
        "security": [{}, {"key": []}],
        "paths": dict(sorted(paths.items())),
        "components": {
            "schemas": components,
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
        "x-chatd-websocket": {
            "path": "/ws",
            "subprotocol": protocol.SUBPROTOCOL,
            "client": schemas[protocol.ClientEvent],
            "server": schemas[protocol.ServerEvent],
        },
    }


def api_routes(routes: Iterable[BaseRoute], prefix: str = "") -> Iterator[tuple[str, Route]]:
    """Each with its path as OpenAPI writes it. The page is left out."""
    for route in routes:
        if isinstance(route, Mount) and route.routes:
            yield from api_routes(route.routes, prefix + route.path)
        elif isinstance(route, Route) and (prefix + route.path).startswith(API):
            yield prefix + re.sub(r":[a-z]+}", "}", route.path), route


def _schemas(found: Iterable[tuple[str, Route]]) -> tuple[dict[Any, Schema], Schema]:
    """The schema of each type that is named anywhere, and the components that these refer to."""
    types: list[Any] = [ErrorBody, NativeErrorBody, *WIRE]
    for _, route in found:
        operation = TABLE.get(route.endpoint, UNKNOWN)
        types += [one for one in (operation.takes, operation.gives, operation.events) if one is not None]
    types = list(dict.fromkeys(types))
    made, components = msgspec.json.schema_components(types, ref_template=PREFIX + "{name}")
    short = {name: name.removeprefix("chatd.server.") for name in components}
    renamed = {short[name]: _with_params(_renamed(schema, short)) for name, schema in components.items()}
    return {kind: _renamed(schema, short) for kind, schema in zip(types, made, strict=True)}, renamed


def _renamed(node: Any, names: Mapping[str, str]) -> Any:
    """``node`` with references to the new names."""
    if isinstance(node, dict):
        return {
            key: PREFIX + names[value.removeprefix(PREFIX)] if key == "$ref" else _renamed(value, names)
            for key, value in node.items()
        }
    return [_renamed(one, names) for one in node] if isinstance(node, list) else node


def _operation(method: str, path: str, endpoint: Callable[..., Any], schemas: Mapping[Any, Schema]) -> Schema:
    operation = TABLE.get(endpoint, UNKNOWN)
    summary, _, description = (inspect.getdoc(endpoint) or path).partition("\n\n")
    made: Schema = {
        "operationId": re.sub(r"[^a-z0-9]+", "_", f"{method.lower()}{path}").strip("_"),
        "summary": " ".join(summary.split()),
        "parameters": [*_path_params(path), *map(_query, operation.query)],
        "responses": {**_good(operation, schemas), **_bad(operation, path, schemas)},
    }
    if description:
        made["description"] = description
    if operation.takes is not None:
        made["requestBody"] = {"required": True, "content": {JSON: {"schema": schemas[operation.takes]}}}
    return made


def _path_params(path: str) -> list[Schema]:
    return [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
        for name in re.findall(r"{(\w+)}", path)
    ]


def _query(query: Query) -> Schema:
    return {"name": query.name, "in": "query", "schema": query.schema, "description": query.words}


def _good(operation: Operation, schemas: Mapping[Any, Schema]) -> Schema:
    content: Schema = {}
    if operation.gives is not None:
        content[JSON] = {"schema": schemas[operation.gives]}
    if operation.media != JSON:
        content[operation.media] = {"schema": {"type": "string"}}
    if operation.events is not None:
        content["text/event-stream"] = {"schema": _event(schemas[operation.events], operation.done)}
    described: Schema = {"description": "As asked."} | ({"content": content} if content else {})
    return dict.fromkeys(operation.statuses, described)


def _event(schema: Schema, done: bool) -> Schema:
    """Of one server-sent event, whose data is JSON or, if there is such an end, ``[DONE]``."""
    data: Schema = {"type": "string", "contentMediaType": JSON, "contentSchema": schema}
    if done:
        data = {"anyOf": [{"const": "[DONE]"}, data]}
    properties = {"event": {"type": "string"}, "data": data}
    return {"type": "object", "properties": properties, "required": ["data"]}


def _bad(operation: Operation, path: str, schemas: Mapping[Any, Schema]) -> Schema:
    shape = schemas[ErrorBody if path.startswith("/v1/") else NativeErrorBody]
    return {
        status: {"description": words, "content": {JSON: {"schema": shape}}}
        for status, words in operation.errors.items()
    }


# -- parameters of answers, which the types leave to `chatd.server.params`


def _with_params(schema: Schema) -> Schema:
    """Ranges for the fields that are looked at there."""
    properties = schema.get("properties")
    if not isinstance(properties, dict):
        return schema
    filled = {name: _param(name, one) for name, one in properties.items()}
    if "params" in filled:
        known = {name: PARAMS[name] for name in sorted(rules.NAMES)}
        filled["params"] = {"type": "object", "properties": known, "additionalProperties": False}
    return {**schema, "properties": filled}


def _param(name: str, schema: Schema) -> Schema:
    """A field whose type says nothing."""
    return {**PARAMS[name], **schema} if name in PARAMS and set(schema) <= {"default"} else schema


def _or_null(**schema: Any) -> Schema:
    return {"anyOf": [schema, {"type": "null"}]}


def _integer(low: int, high: int) -> Schema:
    return _or_null(type="integer", minimum=low, maximum=high)


_TEXT = {"type": "string", "minLength": 1, "maxLength": rules.MAX_STOP_CHARS}
_STOPS = {"type": "array", "items": _TEXT, "maxItems": rules.MAX_STOPS}
_COUNT = _integer(1, rules.MAX_TOKENS)
PARAMS: Mapping[str, Schema] = {
    **{
        name: _or_null(type="number", minimum=bounds.low, maximum=bounds.high)
        for name, bounds in rules.NUMBERS.items()
    },
    **dict.fromkeys(("max_tokens", "max_completion_tokens", "max_output_tokens"), _COUNT),
    "top_k": _or_null(type="integer", minimum=0),
    "seed": _integer(0, rules.MAX_SEED),
    "stop": {"anyOf": [_TEXT, _STOPS, {"type": "null"}]},
    "logit_bias": _or_null(
        type="object",
        additionalProperties={"type": "number", "minimum": -100, "maximum": 100},
        maxProperties=rules.MAX_LOGIT_BIASES,
    ),
    "ignore_eos": _or_null(type="boolean"),
    "truncation": _or_null(enum=list(get_args(rules.Truncation))),
}

ROUTE = Route("/openapi.json", openapi, methods=["GET"])

"""``chatd keys`` without a server: on the database, under the data folder's lock."""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import msgspec
from sqlalchemy import Connection

from chatd.cli.data_reading import read_data
from chatd.config import Settings
from chatd.data_dir import hold_data_dir
from chatd.errors import InvalidParameter
from chatd.ids import Namespace
from chatd.price_file import load_prices
from chatd.resources import migrations_dir
from chatd.server.keys_api import KeyBody, key_of
from chatd.store import keys
from chatd.store.key_limits import use_of
from chatd.store.key_rules import check_names
from chatd.store.records import micros
from chatd.store.store import DATABASE_NAME
from chatd.store.upgrade import upgrade, writing


def create(settings: Settings, body: Mapping[str, Any]) -> dict[str, Any]:
    """As ``POST /api/v1/admin/keys`` answers."""
    try:
        asked = msgspec.convert(body, KeyBody)
    except msgspec.ValidationError as error:
        raise InvalidParameter(str(error)) from None
    account = check_names(asked.name, asked.account)
    limits, secret = asked.limits(load_prices(settings.prices).currency), keys.new_secret()
    with _held(settings) as conn:
        is_first = not keys.list_keys(conn)
        key = keys.create_key(
            conn,
            name=asked.name,
            account=Namespace(account),
            scopes=frozenset(asked.scopes),
            limits=limits,
            secret=secret,
            now=micros(time.time()),
        )
    return {**key_of(key), "secret": secret, "first": is_first}


def listing(settings: Settings) -> dict[str, Any]:
    """As ``GET /api/v1/admin/keys`` answers."""
    now = micros(time.time())
    with read_data(settings) as conn:
        return {"keys": [key_of(one.key, use_of(conn, one.key, now=now)) for one in keys.list_keys(conn)]}


def revoke(settings: Settings, name: str) -> dict[str, Any]:
    """As ``DELETE /api/v1/admin/keys/{name}`` answers."""
    with _held(settings) as conn:
        return key_of(keys.revoke_key(conn, name, now=micros(time.time())))


@contextmanager
def _held(settings: Settings) -> Iterator[Connection]:
    """One transaction that writes; the folder and the database are made if need be."""
    with hold_data_dir(settings.data_dir):
        database = settings.data_dir / DATABASE_NAME
        upgrade(database, migrations_dir())
        with writing(database) as conn:
            yield conn

"""Which names keys and accounts may have. Pure."""

import re

from chatd.errors import InvalidParameter

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,62}", re.ASCII)
WANTED = "1 to 63 letters, digits and . _ @ -, and begins with a letter or a digit"


def check_names(name: str, account: str | None) -> str:
    """The account: without one, the key's name is its own. InvalidParameter for a name that is none."""
    for param, value in (("name", name), ("account", account)):
        if value is not None and not _NAME.fullmatch(value):
            raise InvalidParameter(f"{param} has {WANTED}", param=param)
    return name if account is None else account

"""Fresh ids: the one place where they come from the system's randomness."""

import secrets


def new_id() -> str:
    """128 random bits in hexadecimal: never given before, never guessed."""
    return secrets.token_hex(16)

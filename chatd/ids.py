"""Names of things that cross a seam, so that one kind of id is never passed for another."""

from typing import NewType

Rid = NewType("Rid", str)
"""One engine-side request. A response's id doubles as its request's."""

ResponseId = NewType("ResponseId", str)
ConversationId = NewType("ConversationId", str)
MessageId = NewType("MessageId", str)

Namespace = NewType("Namespace", str)
"""Whose KV this is. Derived by the server from the account, never chosen by a client."""

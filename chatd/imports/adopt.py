"""Conversations of a file made an account's own. Pure.

Ids are made anew from the account and the ids in the file: so the same file again is known, and nobody learns
from it, or takes part in, what other accounts have under the ids in it. Token ids are left out: they may be
another model's, and a file may say anything. Texts are encoded when a conversation goes on.
"""

import hashlib
from collections.abc import Iterable
from dataclasses import replace

from chatd.ids import ConversationId, MessageId, Namespace
from chatd.store.archive import Archived


def adopted(one: Archived, namespace: Namespace) -> Archived:
    """``one`` as ``namespace`` may have it."""

    def new_id(*theirs: str) -> str:
        named = "\x1f".join((namespace, *theirs))
        return hashlib.sha256(named.encode("utf-8", "surrogatepass")).hexdigest()[:32]

    ids = {message.id: MessageId(new_id(one.id, message.id)) for message in one.messages}
    return replace(
        one,
        id=ConversationId(new_id(one.id)),
        namespace=namespace,
        tip_id=None if one.tip_id is None else ids[one.tip_id],
        messages=tuple(
            replace(
                message,
                id=ids[message.id],
                parent_id=None if message.parent_id is None else ids[message.parent_id],
                token_ids=None,
            )
            for message in one.messages
        ),
    )


def missing(found: Iterable[Archived], own: Iterable[ConversationId]) -> list[Archived]:
    """Those that the account does not have, by the file's ids."""
    known = set(own)
    return [one for one in found if one.id not in known]

"""Which token ids the engine saw, from what is stored of a conversation. Pure.

A prompt is what was there before, up to some place, and the tail that its question stores:

    ids of an answer's prompt   [ kept ][ tail of the question ]
                                 0     prompt_len - len(tail)  prompt_len

``kept`` are ids the engine saw for an earlier answer of the same path. Usually that is all of them; where a
template shows old answers in another way, or old turns were left out, the tail begins further back.
"""

from collections.abc import Iterable, Mapping, Sequence

from chatd.ids import MessageId
from chatd.store.records import KeptKV, StoredMessage


def engine_ids(path: Sequence[StoredMessage], kept: Iterable[KeptKV]) -> list[int]:
    """The ids of the prompt, and if ``path`` ends in an answer also of that, as the engine saw them.

    ``path`` begins at the root; ``kept`` are the responses that wrote its answers or, if it ends in a
    question, answered that, oldest first. Where the ids cannot be known they end; those of an answer that was
    killed are known from the next question on, whose tail holds its text.
    """
    written: dict[MessageId, int] = {}
    answered: dict[MessageId | None, int] = {}
    for one in kept:
        written.setdefault(one.message_id, one.prompt_len)
        answered.setdefault(one.parent_id, one.prompt_len)
    ids: list[int] = []
    has_gap = False
    for index, message in enumerate(path):
        if message.role != "assistant":
            if not message.token_ids:  # a later message's tail holds it
                continue
            below = path[index + 1 : index + 2]
            prompt_len = written.get(below[0].id) if below else answered.get(message.id)
            start = -1 if prompt_len is None else prompt_len - len(message.token_ids)
            if not 0 <= start <= len(ids):
                break
            ids[start:] = message.token_ids
            has_gap = False
        elif message.id in written:
            if has_gap:
                break
            has_gap = message.token_ids is None
            ids += message.token_ids or ()
    return ids


def longest_paths(messages: Sequence[StoredMessage], kept: Sequence[KeptKV]) -> list[tuple[int, ...]]:
    """The ids of every path of a conversation whose answers left KV, without those that others begin with."""
    by_id = {message.id: message for message in messages}
    wrote: dict[MessageId, list[KeptKV]] = {}
    for one in kept:
        wrote.setdefault(one.message_id, []).append(one)
    found = set()
    for answer_id, responses in wrote.items():
        if answer_id in by_id and any(one.kv_len for one in responses):
            path = path_up(by_id, answer_id)
            found.add(tuple(engine_ids(path, [one for m in path for one in wrote.get(m.id, ())])))
    ordered = sorted(found - {()})
    followers = zip(ordered, [*ordered[1:], ()], strict=False)
    return [ids for ids, after in followers if after[: len(ids)] != ids]


def path_up(by_id: Mapping[MessageId, StoredMessage], message_id: MessageId) -> list[StoredMessage]:
    """Root first. ``by_id`` holds the whole tree."""
    path: list[StoredMessage] = []
    at: MessageId | None = message_id
    while at is not None:
        path.append(by_id[at])
        at = by_id[at].parent_id
    return path[::-1]

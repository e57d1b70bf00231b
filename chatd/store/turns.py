"""Ended answers with all ids that went through the model, for those who compute them again."""

from sqlalchemy import Connection, select

from chatd.store.conversations import path_to
from chatd.store.kv import kept_on
from chatd.store.kv_paths import engine_ids
from chatd.store.records import ReplayTurn, ResponseRecord
from chatd.store.rows import response_query, to_response
from chatd.store.schema import messages, responses

_WHOLE = frozenset({"end", "length"})
"""Reasons after which the last stored id is the last that was sampled."""


def newest_turns(conn: Connection, at_most: int) -> list[ReplayTurn]:
    """The newest answers that can be computed again, the newest first: see `ReplayTurn`.

    Left out are those of deleted conversations, those that went on with an answer or had one go on, and
    those whose ids are not known.
    """
    there = select(messages.c.id).where(messages.c.id == responses.c.message_id).exists()
    query = response_query().where(responses.c.status != "open", responses.c.kv_len > 0, there)
    found: list[ReplayTurn] = []
    for row in conn.execute(query.order_by(responses.c.seq.desc())):
        if len(found) == at_most:
            break
        turn = _turn(conn, to_response(row))
        if turn is not None:
            found.append(turn)
    return found


def _turn(conn: Connection, record: ResponseRecord) -> ReplayTurn | None:
    path = path_to(conn, record.namespace, record.message_id)
    kept, answer = kept_on(conn, path), path[-1].token_ids
    ids = engine_ids(path, kept)
    wrote = sum(one.message_id == record.message_id for one in kept)
    if wrote != 1 or answer is None or len(ids) != record.prompt_len + len(answer):
        return None
    sampled_len = record.kv_len - record.prompt_len + (record.finish_reason in _WHOLE)
    answer_len = min(len(answer), sampled_len)
    if answer_len < 1:
        return None
    return ReplayTurn(record, tuple(ids[: record.prompt_len + answer_len]), answer_len)

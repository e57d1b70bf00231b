"""The ids that the engine saw, from stored messages and what their responses left."""

from collections.abc import Sequence

from chatd.ids import ConversationId, MessageId
from chatd.store.kv_paths import engine_ids, longest_paths
from chatd.store.records import KeptKV, MessageStatus, RunId, StoredMessage


def message(name: str, role: str, ids: Sequence[int] | None, parent: str | None) -> StoredMessage:
    return StoredMessage(
        id=MessageId(name),
        conversation_id=ConversationId("c"),
        parent_id=None if parent is None else MessageId(parent),
        role=role,
        text=name,
        token_ids=None if ids is None else tuple(ids),
        status=MessageStatus.COMPLETED,
        chain_key=b"",
        created_at=0,
    )


def left(answer: str, under: str, prompt_len: int, kv_len: int) -> KeptKV:
    return KeptKV(MessageId(answer), MessageId(under), prompt_len, kv_len, RunId(1), "toy", "", "")


SYSTEM = message("s", "system", (), None)
U1 = message("u1", "user", (1, 2, 3, 4), "s")
A1 = message("a1", "assistant", (5, 6, 7), "u1")
U2 = message("u2", "user", (8, 9), "a1")
A2 = message("a2", "assistant", (10, 11), "u2")
KV1, KV2 = left("a1", "u1", 4, 6), left("a2", "u2", 9, 10)


def test_a_path_is_tails_and_answers() -> None:
    assert engine_ids([SYSTEM, U1, A1, U2, A2], [KV1, KV2]) == list(range(1, 12))
    assert engine_ids([SYSTEM, U1, A1], [KV1]) == list(range(1, 8))


def test_a_question_at_the_end_counts_if_it_was_answered() -> None:
    assert engine_ids([SYSTEM, U1, A1, U2], [KV1, KV2]) == list(range(1, 10))
    assert engine_ids([SYSTEM, U1, A1, U2], [KV1]) == list(range(1, 8))


def test_a_tail_that_begins_further_back_takes_the_place_of_what_it_rewrote() -> None:
    rewritten = message("u2", "user", (50, 51, 52), "a1")
    answer = left("a2", "u2", 5, 6)  # of what was there before, 2 ids were kept
    assert engine_ids([SYSTEM, U1, A1, rewritten, A2], [KV1, answer]) == [1, 2, 50, 51, 52, 10, 11]


def test_a_history_that_came_as_text_is_in_the_last_question() -> None:
    foreign = message("a1", "assistant", None, "u1")
    first = message("u1", "user", (), "s")
    question = message("u2", "user", range(20, 30), "a1")
    answer = left("a2", "u2", 10, 11)
    assert engine_ids([SYSTEM, first, foreign, question, A2], [answer]) == [*range(20, 30), 10, 11]


def test_an_answer_without_ids_ends_what_is_known() -> None:
    broken = message("a1", "assistant", None, "u1")
    assert engine_ids([SYSTEM, U1, broken, U2, A2], [KV1, KV2]) == [1, 2, 3, 4]


def test_a_killed_answer_is_known_from_the_next_question_on() -> None:
    killed = message("a1", "assistant", None, "u1")
    question = message("u2", "user", (4, 50, 51, 8, 9), "a1")
    answer = left("a2", "u2", 8, 9)  # its tail holds what was stored of the killed answer
    known = [1, 2, 3, 4, 50, 51, 8, 9]
    assert engine_ids([SYSTEM, U1, killed], [KV1]) == [1, 2, 3, 4]
    assert engine_ids([SYSTEM, U1, killed, question, A2], [KV1, answer]) == [*known, 10, 11]
    more = message("a1x", "assistant", (60,), "a1")  # what no question stands before
    assert engine_ids([SYSTEM, U1, killed, more], [KV1, left("a1x", "a1", 4, 5)]) == [1, 2, 3, 4]


def test_a_continued_answer_is_one() -> None:
    again = left("a1", "u1", 7, 8)
    assert engine_ids([SYSTEM, U1, A1], [KV1, again]) == list(range(1, 8))


def test_a_prompt_that_does_not_fit_together_ends_what_is_known() -> None:
    assert engine_ids([SYSTEM, U1, A1, U2, A2], [KV1, left("a2", "u2", 99, 100)]) == list(range(1, 8))


def test_of_a_tree_the_longest_paths() -> None:
    edit = message("u2x", "user", (80, 90), "a1")
    other = message("a2x", "assistant", (12,), "u2x")
    unheard = message("a2y", "assistant", (), "u2")
    kept = [KV1, KV2, left("a2x", "u2x", 9, 9), left("a2y", "u2", 9, 0)]
    assert longest_paths([SYSTEM, U1, A1, U2, A2, edit, other, unheard], kept) == [
        tuple(range(1, 12)),
        (*range(1, 8), 80, 90, 12),
    ]
    assert longest_paths([SYSTEM, U1, A1], [left("a1", "u1", 4, 0)]) == []
    assert longest_paths([], []) == []

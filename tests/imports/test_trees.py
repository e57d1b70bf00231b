"""Other tools' trees made into ours."""

import pytest

from chatd.ids import Namespace
from chatd.imports.errors import WrongFile
from chatd.imports.trees import Node, Source
from chatd.store.archive import Archived

NS = Namespace("local")


def made(*nodes: Node, current: str | None = None, title: str = "T", source: str = "s") -> Archived:
    found = Source("tool", source, title, 5, 6, current, nodes).archived(NS)
    found.check()
    return found


def shape(one: Archived) -> dict[str, str | None]:
    """Each text with the text above it."""
    texts = {message.id: message.text for message in one.messages}
    return {
        message.text: None if message.parent_id is None else texts[message.parent_id]
        for message in one.messages
    }


def tip(one: Archived) -> str:
    return next(message.text for message in one.messages if message.id == one.tip_id)


def test_a_tree_keeps_its_branches_and_its_tip() -> None:
    one = made(
        Node("q", None, "user", "q"),
        Node("a1", "q", "assistant", "a1"),
        Node("a2", "q", "assistant", "a2"),
        Node("r", "a1", "user", "r", created_at=9),
        current="a1",
    )
    assert shape(one) == {"q": None, "a1": "q", "a2": "q", "r": "a1"}
    assert tip(one) == "a1"
    assert [message.created_at for message in one.messages] == [5, 5, 9, 5]


def test_what_says_nothing_is_left_out_and_what_hangs_below_goes_up() -> None:
    one = made(
        Node("root", None, "", ""),
        Node("s", "root", "system", "  "),
        Node("q", "s", "user", "q"),
        Node("call", "q", "tool", "search"),
        Node("a", "call", "assistant", "a"),
        current="call",
    )
    assert shape(one) == {"q": None, "a": "q"}
    assert tip(one) == "q"


def test_one_role_in_a_row_is_one_message_unless_there_is_a_branch() -> None:
    one = made(
        Node("q", None, "user", "q"),
        Node("a", "q", "assistant", "a"),
        Node("t", "a", "tool", "x"),
        Node("b", "t", "assistant", "b"),
        Node("c", "b", "assistant", "c"),
        Node("c2", "b", "assistant", "c2"),
    )
    assert shape(one) == {"q": None, "a\n\nb": "q", "c": "a\n\nb", "c2": "a\n\nb"}


def test_children_may_come_before_their_parents() -> None:
    one = made(Node("a", "q", "assistant", "a"), Node("q", None, "user", "q"))
    assert [message.text for message in one.messages] == ["q", "a"]


def test_a_parent_that_is_not_there_is_none() -> None:
    assert shape(made(Node("q", "lost", "user", "q"))) == {"q": None}


def test_nothing_said_is_an_empty_conversation() -> None:
    one = made(Node("root", None, "", ""))
    assert (one.messages, one.tip_id) == ((), None)


def test_ids_are_the_same_each_time_and_others_elsewhere() -> None:
    node = Node("q", None, "user", "q")
    first, again, other = made(node), made(node), made(node, source="other")
    assert first == again
    assert first.id != other.id
    assert first.messages[0].id != other.messages[0].id


def test_a_long_title_is_cut() -> None:
    assert made(Node("q", None, "user", "q"), title="x\n y " * 99).title.startswith("x y x y")


@pytest.mark.parametrize(
    ("nodes", "wanted"),
    [
        ([Node("a", "b", "user", "a"), Node("b", "a", "user", "b")], "loop"),
        ([Node("a", "a", "user", "a")], "loop"),
        ([Node("a", None, "user", "a"), Node("a", None, "user", "b")], "same id"),
    ],
)
def test_what_is_no_tree_is_refused(nodes: list[Node], wanted: str) -> None:
    with pytest.raises(WrongFile, match=wanted):
        made(*nodes)


def test_a_chain_of_fifty_thousand_messages_is_no_trouble() -> None:
    nodes = [
        Node(str(n), str(n - 1) if n else None, "assistant" if n % 2 else "user", str(n))
        for n in range(50_000)
    ]
    assert len(made(*nodes).messages) == 50_000

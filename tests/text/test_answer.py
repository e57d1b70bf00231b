"""AnswerText: half characters are never sent, nothing is taken back, stop strings cut across tokens."""

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chatd.text.answer import AnswerText
from chatd.text.tokenizer import Tokenizer
from tests.text.test_stops import first_match
from tests.text.vocabularies import CONTROL, byte_tokenizer, spm_tokenizer

BYTES = byte_tokenizer({"<|end|>": CONTROL, "<|x|>": CONTROL}, merges=["a b", "Ã ©", "â Ĥ", "ab a"])
SPM = spm_tokenizer()
END = BYTES.vocab_size - 2
IDS = st.lists(st.integers(0, BYTES.vocab_size - 1), max_size=40)

Streamed = tuple[list[str], list[int], AnswerText, bool]


def stream(tokenizer: Tokenizer, ids: list[int], stop: list[str]) -> Streamed:
    """Deltas, ids given out, and whether a stop matched. Checks what must hold after each push."""
    answer, stopped = AnswerText(tokenizer, stop), False
    deltas: list[str] = []
    out: list[int] = []
    for token_id in ids:
        text, done, stopped = answer.push(token_id)
        deltas.append(text)
        out += done
        assert "".join(deltas).startswith(tokenizer.decode(out)), "ids are ahead of their text"
        assert tokenizer.decode(answer.answer_ids()) == "".join(deltas)
        if stopped:
            break
    text, done = answer.finish()
    assert not (stopped and text), "nothing comes after a stop"
    deltas.append(text)
    out += done
    assert tokenizer.decode(out) == "".join(deltas)[: len(tokenizer.decode(out))]
    return deltas, out, answer, stopped


BYTE_IDS = {BYTES.token_bytes(i): i for i in range(256)}


def byte_ids(data: bytes) -> list[int]:
    """One token for each byte."""
    return [BYTE_IDS[bytes([byte])] for byte in data]


SPLIT = {
    "emoji": "ok 🙂!",
    "ZWJ family": "👨‍👩‍👧‍👦",
    "flag": "🇩🇪🏴󠁧󠁢󠁥󠁮󠁧󠁿",
    "Devanagari": "क्षि नमस्ते",
    "CJK": "中文，한국어",
    "ASCII": "plain",
}


@pytest.mark.parametrize("text", SPLIT.values(), ids=SPLIT)
def test_e1_split_characters(text: str) -> None:
    deltas, out, _, _ = stream(BYTES, byte_ids(text.encode()), [])
    assert "".join(deltas) == text
    assert out == byte_ids(text.encode())
    for delta in deltas:
        assert "\ufffd" not in delta
        delta.encode("utf-8")


@given(ids=IDS)
def test_e1_deltas_join_to_the_decoding_of_any_ids(ids: list[int]) -> None:
    deltas, out, answer, _ = stream(BYTES, ids, [])
    assert "".join(deltas) == BYTES.decode(ids)
    assert out == ids
    assert list(answer.answer_ids()) == ids


def test_e2_no_going_back() -> None:
    """Broken bytes that resolve later, and some that never do."""
    text = "Añ中"
    ids = byte_ids(text.encode() + b"\xe4\xb8x\xf0\x9f")
    deltas, _, _, _ = stream(BYTES, ids, [])
    assert deltas == ["A", "", "ñ", "", "", "中", "", "", "\ufffdx", "", "", "\ufffd"]


def test_e3_leading_space() -> None:
    tokens = {SPM.token_bytes(i): i for i in range(SPM.vocab_size)}
    ids = [tokens[b" ab"], tokens[b" "], tokens[b"c"]]
    deltas, _, _, _ = stream(SPM, ids, [])
    assert deltas == [" ab", " ", "c", ""]
    assert "".join(deltas) == SPM.decode(ids)


WORDS = byte_tokenizer(
    merges=["a b", "ab c", "D E", "DE F", "G H", "GH I", "c Ġ", "cĠ D", "E F", "Ġ G", "F ĠG", "H I", "DEF ĠG"]
)
WAYS = (
    ["abc", " ", "DEF", " ", "GHI"],
    ["a", "b", "c", " ", "D", "E", "F", " ", "G", "H", "I"],
    ["ab", "c ", "DEF", " G", "HI"],
    ["ab", "c D", "E", "F G", "HI"],
    ["abc", " ", "DEF G", "HI"],
    ["abc", " ", "DE", "F", " ", "GH", "I"],
    ["a", "b", "c D", "EF", " G", "H", "I"],
    ["abc", " ", "D", "EF", " ", "G", "HI"],
    ["ab", "c", " ", "DE", "F G", "H", "I"],
    ["a", "b", "c ", "D", "E", "F", " G", "HI"],
)


@pytest.mark.parametrize("way", WAYS)
def test_f1_stop_over_token_edges(way: list[str]) -> None:
    by_text = {WORDS.token_bytes(i).decode("latin-1"): i for i in range(WORDS.vocab_size)}
    deltas, _, answer, stopped = stream(WORDS, [by_text[token] for token in way], ["DEF G"])
    assert stopped
    assert "".join(deltas) == "abc "
    assert WORDS.decode(answer.answer_ids()) == "abc "


@pytest.mark.parametrize("end", [[], [END]])
def test_f2_false_alarm_at_the_end(end: list[int]) -> None:
    ids = [*byte_ids(b"abcXY"), *end]
    deltas, out, answer, stopped = stream(BYTES, ids, ["XYZ"])
    assert not stopped
    assert deltas[3:5] == ["", ""]
    assert "".join(deltas) == "abcXY"
    assert out == ids == list(answer.answer_ids())


@pytest.mark.parametrize(
    ("text", "stops", "visible"),
    [
        ("aaab", ["aab"], "a"),
        ("aabaab", ["aab"], ""),
        ("one STOP two END", ["END", "STOP"], "one "),
        ("caf\u00e9 au lait", ["\u00e9"], "caf"),
        ("xabcdef", ["cd", "abcdef"], "xab"),
        ("xabcd", ["cd", "abcd"], "x"),
    ],
)
def test_f3_overlaps(text: str, stops: list[str], visible: str) -> None:
    """Also of two stops in one token, and of one in two byte tokens of a character."""
    deltas, _, answer, stopped = stream(BYTES, byte_ids(text.encode()), stops)
    assert stopped
    assert "".join(deltas) == visible
    assert BYTES.decode(answer.answer_ids()) == visible
    whole = byte_tokenizer()
    at_once, _, _, _ = stream(whole, whole.encode_text(text), stops)
    assert "".join(at_once) == visible


@settings(max_examples=300)
@given(
    ids=IDS, stops=st.lists(st.text("ab\u00e9\ufffd\u20ac", min_size=1, max_size=3), min_size=1, max_size=3)
)
def test_f3_the_answer_does_not_depend_on_where_tokens_are_cut(ids: list[int], stops: list[str]) -> None:
    text = BYTES.decode(ids)
    match = first_match(text, stops)
    deltas, out, answer, _ = stream(BYTES, ids, stops)
    if match is None:
        assert "".join(deltas) == text
        assert out == ids == list(answer.answer_ids())
    else:
        assert "".join(deltas) == text[: match[0] - match[1]]
        assert BYTES.decode(answer.answer_ids()) == "".join(deltas)


def test_ids_before_a_stop_are_kept_as_they_were_generated() -> None:
    """`a`, `b` were generated apart although they have a token together."""
    ids = [*byte_ids(b"abab"), *byte_ids(b"STOP")]
    _, out, answer, _ = stream(BYTES, ids, ["STOP"])
    assert list(answer.answer_ids()) == byte_ids(b"abab") == out


def test_control_tokens_add_no_text_and_stay_in_the_answer() -> None:
    ids = [*byte_ids(b"a"), END, *byte_ids(b"b"), END + 1]
    deltas, out, answer, _ = stream(BYTES, ids, [])
    assert deltas == ["a", "", "b", "", ""]
    assert out == ids == list(answer.answer_ids())


def test_nothing_comes_after_an_ending() -> None:
    answer = AnswerText(BYTES, ["a"])
    assert answer.push(BYTE_IDS[b"a"]) == ("", (), True)
    assert answer.push(BYTE_IDS[b"b"]) == ("", (), True)
    assert answer.finish() == ("", ())
    finished = AnswerText(BYTES)
    finished.push(BYTE_IDS[b"b"])
    assert finished.finish() == ("", ())
    assert finished.push(BYTE_IDS[b"c"]) == ("", (), False)
    assert BYTES.decode(finished.answer_ids()) == "b"


def test_a_push_costs_the_same_late_in_an_answer() -> None:
    answer = AnswerText(BYTES, ["\nUser:", "STOP"])
    ids = byte_ids(b"some ordinary words, ") * 5000

    def cost() -> float:
        began = time.thread_time()
        for token_id in ids:
            answer.push(token_id)
        return time.thread_time() - began

    first = cost()
    second = cost()
    assert second < 3 * first + 0.05
    assert second / len(ids) < 20e-6  # 1 microsecond here

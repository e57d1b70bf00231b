"""The sans-I/O session: each transition, and the law against a model under Hypothesis."""

import json
from dataclasses import dataclass, field

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from msgspec.structs import replace

from chatd.errors import Conflict, NotFound
from chatd.server import protocol as wire
from chatd.server.session import (
    MAX_ENDED,
    Acknowledge,
    Cancel,
    Effect,
    Estimate,
    Identity,
    Listen,
    Send,
    Session,
    Start,
    WarmUp,
)

IDENTITY = Identity("s", "1.0", 15.0, "CNY")
USAGE = wire.Usage(5, 0, 0, 5, 3, 8)
TIMINGS = wire.Timings(1.0, 2.0, 3.0, 4.0, 5.0)
COST = wire.Cost("CNY", 1, 1, 0, 1, 0, "v1")
ENDINGS = (wire.ResponseCompleted, wire.ResponseIncomplete, wire.ResponseCancelled, wire.ResponseFailed)


def frame(event: wire.ClientEvent) -> str:
    return wire.encode(event).decode()


def ready(max_responses: int = 8) -> Session:
    session = Session(IDENTITY, max_responses=max_responses)
    session.model_ready("smol", 2048)
    return session


def events(effects: list[Effect]) -> list[wire.ServerEvent]:
    return [effect.event for effect in effects if isinstance(effect, Send)]


def the_error(effects: list[Effect]) -> wire.Error:
    [event] = events(effects)
    assert isinstance(event, wire.Error)
    assert len(effects) == 1
    return event


def start(session: Session, response_id: str, key: str = "k", conversation_id: str = "c") -> list[Effect]:
    [asked] = session.frame(frame(wire.ResponseCreate(key, "hi")))
    assert isinstance(asked, Start)
    return session.started(
        asked.ticket,
        response_id=response_id,
        conversation_id=conversation_id,
        user_message_id="u",
        message_id="m",
    )


def ending(response_id: str, last_seq: int, kind: int = 0, conversation_id: str = "c") -> wire.AnyEnding:
    return ENDINGS[kind](
        response_id=response_id,
        conversation_id=conversation_id,
        message_id="m",
        finish_reason="end",
        last_seq=last_seq,
        usage=USAGE,
        timings=TIMINGS,
        cost=COST,
    )


def update(conversation_id: str = "c") -> wire.ConversationUpdated:
    return wire.ConversationUpdated(conversation_id, "title", "m", "2026-01-01T00:00:00Z")


def delta(response_id: str, from_seq: int, seq: int) -> wire.ResponseDelta:
    return wire.ResponseDelta(response_id, from_seq, seq, "".join(f"<{n}>" for n in range(from_seq, seq + 1)))


def test_hello_before_and_after_the_model_is_there() -> None:
    session = Session(IDENTITY, max_responses=8)
    hello = frame(wire.SessionHello())
    assert events(session.frame(hello)) == [wire.SessionCreated("s", None, None, "1.0", 15.0, "CNY")]
    session.model_ready("smol", 2048)
    assert events(session.frame(hello)) == [wire.SessionCreated("s", "smol", 2048, "1.0", 15.0, "CNY")]


def test_ping_and_heartbeat_at_any_time() -> None:
    session = ready()
    for _ in range(2):
        assert session.frame('{"type":"ping"}') == [Send(wire.Pong())]
        assert session.heartbeat() == [Send(wire.Pong())]
        start(session, "r")  # now it waits in the queue, then in prefill
        session.status(wire.ResponseQueued("r", 3))


def test_nothing_is_asked_of_a_model_that_is_not_there() -> None:
    session = Session(IDENTITY, max_responses=8)
    for event in (
        wire.ResponseCreate("k", "hi"),
        wire.ResponseCancel("r"),
        wire.ResponseSubscribe("r", 0),
    ):
        error = the_error(session.frame(frame(event)))
        assert (error.code, error.retryable) == ("not_ready", True)
    session.model_ready("smol", 2048)
    assert isinstance(session.frame(frame(wire.ResponseCreate("k", "hi")))[0], Start)


def test_m1_a_bad_frame_is_one_error_and_nothing_else() -> None:
    session = ready()
    start(session, "r")
    for bad in ("", "[]", b"\x00", '{"type":"ping","type":"ping"}'):
        assert the_error(session.frame(bad)).code == "bad_frame"
    assert events(session.delta(delta("r", 1, 1))) == [delta("r", 1, 1)]


def test_an_answer_from_create_to_ending() -> None:
    session = ready()
    effects = start(session, "r")
    assert effects == [Send(wire.ResponseCreated("r", "k", "c", "u", "m", 0, "")), Listen("r", 0)]
    queued, prefill = wire.ResponseQueued("r", 1), wire.ResponsePrefill("r", 5, 0, 0, 5, 5)
    assert session.status(queued) == [Send(queued)]
    assert session.status(prefill) == [Send(prefill)]
    assert session.delta(delta("r", 1, 3)) == [Send(delta("r", 1, 3))]
    assert session.conversation(update()) == []  # waits for the ending
    assert session.ended(ending("r", 3)) == [Send(ending("r", 3)), Send(update())]
    assert not session.busy
    for late in (
        session.status(queued),
        session.delta(delta("r", 4, 4)),
        session.ended(ending("r", 3, kind=2)),
    ):
        assert late == []


def test_what_became_of_the_history_is_said_at_once() -> None:
    session = ready()
    [asked] = session.frame(frame(wire.ResponseCreate("k", "hi")))
    assert isinstance(asked, Start)
    effects = session.started(
        asked.ticket, response_id="r", conversation_id="c", user_message_id="u", message_id="m",
        dropped_turns=2, miss="template_rewrote:3",
    )  # fmt: skip
    assert events(effects) == [wire.ResponseCreated("r", "k", "c", "u", "m", 2, "template_rewrote:3")]


def test_a_refused_create_is_one_error_with_its_key() -> None:
    session = ready()
    [asked] = session.frame(frame(wire.ResponseCreate("mine", "hi")))
    assert isinstance(asked, Start)
    error = the_error(session.refused(asked.ticket, Conflict("no", param="conversation_id")))
    assert (error.code, error.idempotency_key, error.param) == ("conflict", "mine", "conversation_id")
    assert not session.busy


def test_q2_the_same_key_ten_times_is_heard_once() -> None:
    session = ready(max_responses=10)
    asked = [session.frame(frame(wire.ResponseCreate("k", "hi")))[0] for _ in range(10)]
    listens = 0
    for one in asked:
        assert isinstance(one, Start)
        effects = session.started(
            one.ticket, response_id="r", conversation_id="c", user_message_id="u", message_id="m"
        )
        assert events(effects) == [wire.ResponseCreated("r", "k", "c", "u", "m", 0, "")]
        listens += len(effects) - 1
    assert listens == 1
    assert session.delta(delta("r", 1, 1)) == [Send(delta("r", 1, 1))]
    assert len(events(session.ended(ending("r", 1)))) == 1


def test_subscribe_starts_after_the_given_piece() -> None:
    session = ready()
    assert session.frame(frame(wire.ResponseSubscribe("r", 4))) == [Listen("r", 4)]
    assert session.delta(delta("r", 2, 4)) == []
    assert session.delta(delta("r", 5, 6)) == [Send(delta("r", 5, 6))]
    assert session.ended(ending("r", 6)) == [Send(ending("r", 6))]


def test_subscribe_twice_is_a_conflict() -> None:
    session = ready()
    session.frame(frame(wire.ResponseSubscribe("r", 0)))
    error = the_error(session.frame(frame(wire.ResponseSubscribe("r", 0))))
    assert (error.code, error.response_id) == ("conflict", "r")


def test_what_overlaps_or_skips_is_listened_to_anew() -> None:
    session = ready()
    start(session, "r")
    session.delta(delta("r", 1, 3))
    assert session.delta(delta("r", 3, 5)) == [Listen("r", 3)]  # cannot be cut here: the store can
    assert session.delta(delta("r", 4, 5)) == [Send(delta("r", 4, 5))]
    assert session.delta(delta("r", 7, 8)) == [Listen("r", 5)]
    assert session.delta(delta("r", 6, 6)) == [Send(delta("r", 6, 6))]
    assert session.ended(ending("r", 8)) == [Listen("r", 6)]
    with pytest.raises(RuntimeError, match="skips piece 7"):
        session.ended(ending("r", 8))


def test_a_subscription_that_fails() -> None:
    session = ready()
    session.frame(frame(wire.ResponseSubscribe("r", 0)))
    error = the_error(session.listen_refused("r", NotFound("no such response")))
    assert (error.code, error.response_id) == ("not_found", "r")
    assert not session.busy


def test_an_accepted_create_cannot_end_in_an_error() -> None:
    session = ready()
    start(session, "r")
    with pytest.raises(NotFound):
        session.listen_refused("r", NotFound("gone"))


def test_cancel() -> None:
    session = ready()
    start(session, "r")
    assert session.frame(frame(wire.ResponseCancel("r"))) == [Cancel("r")]
    assert session.ended(ending("r", 0, kind=2)) == [Send(ending("r", 0, kind=2))]
    assert session.frame(frame(wire.ResponseCancel("other"))) == [Cancel("other")]
    error = the_error(session.cancel_refused("other", NotFound("no such response")))
    assert (error.code, error.response_id) == ("not_found", "other")


def test_o3_draining_refuses_the_new_and_finishes_the_old() -> None:
    session = ready()
    start(session, "r")
    assert session.draining(8.0) == [Send(wire.ServerDraining(8.0))]
    assert session.draining(8.0) == []
    error = the_error(session.frame(frame(wire.ResponseCreate("k2", "hi"))))
    assert (error.code, error.retryable, error.idempotency_key) == ("draining", True, "k2")
    assert session.frame(frame(wire.ResponseSubscribe("old", 0))) == [Listen("old", 0)]
    assert session.delta(delta("r", 1, 1)) == [Send(delta("r", 1, 1))]
    assert session.ended(ending("r", 1)) == [Send(ending("r", 1))]


def test_too_many_at_once() -> None:
    session = ready(max_responses=2)
    session.frame(frame(wire.ResponseCreate("k1", "hi")))
    session.frame(frame(wire.ResponseSubscribe("r", 0)))
    for event in (wire.ResponseCreate("k2", "hi"), wire.ResponseSubscribe("q", 0)):
        error = the_error(session.frame(frame(event)))
        assert (error.code, error.retryable) == ("overloaded", True)
    session.ended(ending("r", 0))
    assert isinstance(session.frame(frame(wire.ResponseCreate("k2", "hi")))[0], Start)


def test_a_changed_system_prompt_is_told_though_more_changes_while_it_waits() -> None:
    session = ready()
    start(session, "r", conversation_id="a")
    changed = replace(update("a"), system_changed=True)
    assert session.conversation(changed) == []
    assert session.conversation(update("a")) == []
    assert session.ended(ending("r", 0, conversation_id="a"))[-1] == Send(changed)


def test_updates_of_other_conversations_do_not_wait() -> None:
    session = ready()
    start(session, "r", conversation_id="a")
    assert session.conversation(update("b")) == [Send(update("b"))]
    assert session.conversation(update("a")) == []
    assert session.conversation(update("a")) == []
    assert session.ended(ending("r", 0, conversation_id="a")) == [
        Send(ending("r", 0, conversation_id="a")),
        Send(update("a")),
    ]


@dataclass
class Truth:
    """A response as the server has it: what was made so far, and whether it is over."""

    made: int = 0
    over: bool = False
    over_kind: int = 0


@dataclass
class Ear:
    """A stream that a pump would hold: what it has given out already."""

    given: int


@dataclass
class Heard:
    """What the client makes of what it is sent about one response."""

    open: bool = False
    seq: int = 0
    text_seqs: list[int] = field(default_factory=list)


class LawMachine(RuleBasedStateMachine):
    """Any order of frames, service answers and stream events; the client's view is checked at each step."""

    @initialize()
    def begin(self) -> None:
        self.session = ready(max_responses=4)
        self.tickets: dict[int, str] = {}  # ticket -> key
        self.by_key: dict[str, str] = {}  # key -> response id
        self.truth: dict[str, Truth] = {}
        self.ears: dict[str, Ear] = {}
        self.heard: dict[str, Heard] = {}
        self.owed: dict[str, int] = {}  # creates accepted since the last ending
        self.errors = 0

    # what the pump does

    def carry_out(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case Send(event):
                    self.client_hears(event)
                case Start(ticket, request):
                    self.tickets[ticket] = request.idempotency_key
                case Listen(response_id, after_seq):
                    self.ears[response_id] = Ear(after_seq)
                    self.heard.setdefault(response_id, Heard())
                    if not self.heard[response_id].open:
                        self.heard[response_id] = Heard(open=True, seq=after_seq)

    # what the client checks

    def client_hears(self, event: wire.ServerEvent) -> None:
        match event:
            case wire.Error():
                self.errors += 1
            case wire.ResponseCreated(response_id=rid):
                self.owed[rid] = self.owed.get(rid, 0) + 1
            case wire.ResponseQueued(response_id=rid) | wire.ResponsePrefill(response_id=rid):
                assert self.heard[rid].open
            case wire.ResponseDelta(response_id=rid):
                heard = self.heard[rid]
                assert heard.open
                assert event.from_seq == heard.seq + 1
                assert event.delta == delta(rid, event.from_seq, event.seq).delta
                heard.seq = event.seq
            case _ if isinstance(event, wire.AnyEnding):
                heard = self.heard[event.response_id]
                assert heard.open
                assert heard.seq >= event.last_seq == self.truth[event.response_id].made
                heard.open = False
                self.owed.pop(event.response_id, None)

    # the client's moves

    @rule(key=st.sampled_from(["k1", "k2"]))
    def create(self, key: str) -> None:
        before = len(self.tickets), self.errors
        self.carry_out(self.session.frame(frame(wire.ResponseCreate(key, "hi"))))
        assert (len(self.tickets), self.errors) in ((before[0] + 1, before[1]), (before[0], before[1] + 1))

    @rule(bad=st.sampled_from(["", "[]", '{"type":"ping","x":1}', b"\xff"]))
    def bad_frame(self, bad: str | bytes) -> None:
        before = self.errors
        self.carry_out(self.session.frame(bad))
        assert self.errors == before + 1

    @precondition(lambda self: self.truth)
    @rule(data=st.data())
    def subscribe(self, data: st.DataObject) -> None:
        rid = data.draw(st.sampled_from(sorted(self.truth)))
        after = data.draw(st.integers(0, self.truth[rid].made))
        self.carry_out(self.session.frame(frame(wire.ResponseSubscribe(rid, after))))

    @precondition(lambda self: self.truth)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        rid = data.draw(st.sampled_from(sorted(self.truth)))
        assert self.session.frame(frame(wire.ResponseCancel(rid))) == [Cancel(rid)]
        if not self.truth[rid].over:
            self.truth[rid].over, self.truth[rid].over_kind = True, 2

    @precondition(lambda self: self.truth)
    @rule(data=st.data())
    def acknowledge(self, data: st.DataObject) -> None:
        rid = data.draw(st.sampled_from(sorted(self.truth)))
        seq = data.draw(st.integers(0, self.truth[rid].made + 2))
        for effect in self.session.frame(frame(wire.ResponseAck(rid, seq))):
            assert isinstance(effect, Acknowledge)
            assert effect.seq <= self.heard[rid].seq, "nobody has what was not sent"

    # the service's moves

    @precondition(lambda self: self.tickets)
    @rule(data=st.data())
    def answer_start(self, data: st.DataObject) -> None:
        ticket = data.draw(st.sampled_from(sorted(self.tickets)))
        key = self.tickets.pop(ticket)
        if key not in self.by_key and data.draw(st.booleans()):
            self.carry_out(self.session.refused(ticket, Conflict("no")))
            return
        rid = self.by_key.setdefault(key, f"r-{key}")
        self.truth.setdefault(rid, Truth())
        self.carry_out(
            self.session.started(
                ticket, response_id=rid, conversation_id="c", user_message_id=None, message_id="m"
            )
        )

    @precondition(lambda self: any(not truth.over for truth in self.truth.values()))
    @rule(data=st.data(), pieces=st.integers(1, 4))
    def make(self, data: st.DataObject, pieces: int) -> None:
        rid = data.draw(st.sampled_from(sorted(r for r, truth in self.truth.items() if not truth.over)))
        self.truth[rid].made += pieces

    @precondition(lambda self: any(not truth.over for truth in self.truth.values()))
    @rule(data=st.data(), kind=st.integers(0, 3))
    def finish(self, data: st.DataObject, kind: int) -> None:
        rid = data.draw(st.sampled_from(sorted(r for r, truth in self.truth.items() if not truth.over)))
        self.truth[rid].over, self.truth[rid].over_kind = True, kind

    @precondition(lambda self: self.ears)
    @rule(data=st.data(), more=st.integers(0, 3))
    def stream_speaks(self, data: st.DataObject, more: int) -> None:
        """The stream's next event; sometimes a status, sometimes one that overlaps or comes too early."""
        rid = data.draw(st.sampled_from(sorted(self.ears)))
        ear, truth = self.ears[rid], self.truth[rid]
        truth.made += 0 if truth.over else more
        if data.draw(st.booleans()):
            self.carry_out(self.session.status(wire.ResponseQueued(rid, 1)))
        if truth.over and (ear.given == truth.made or data.draw(st.booleans())):
            self.feed_ending(rid)
        elif ear.given < truth.made:
            first = data.draw(st.integers(max(1, ear.given), ear.given + 1))
            last = data.draw(st.integers(ear.given + 1, truth.made))
            self.feed_delta(rid, ear, first, last)

    def feed_ending(self, rid: str) -> None:
        truth = self.truth[rid]
        effects = self.session.ended(ending(rid, truth.made, truth.over_kind))
        self.carry_out(effects)
        if any(isinstance(effect, Listen) for effect in effects):  # it came before its text
            self.feed_delta(rid, self.ears[rid], self.ears[rid].given + 1, truth.made)
        else:
            del self.ears[rid]

    def feed_delta(self, rid: str, ear: Ear, first: int, last: int) -> None:
        effects = self.session.delta(delta(rid, first, last))
        if any(isinstance(effect, Listen) for effect in effects):
            self.carry_out(effects)  # the new stream gives the same text, rightly cut
            ear = self.ears[rid]
            effects = self.session.delta(delta(rid, ear.given + 1, last))
            assert not any(isinstance(effect, Listen) for effect in effects)
        ear.given = last
        self.carry_out(effects)

    @rule()
    def unasked(self) -> None:
        self.carry_out(self.session.conversation(update()))
        self.carry_out(self.session.heartbeat())

    @invariant()
    def each_open_create_will_have_its_ending(self) -> None:
        """An accepted create not ended yet is being listened to, and nothing else is."""
        listening = {rid for rid, heard in self.heard.items() if heard.open}
        assert set(self.owed) <= listening
        assert listening == set(self.ears)
        assert self.session.busy == bool(listening or self.tickets)

    def teardown(self) -> None:
        """Let everything run to its end: then no create is without its ending."""
        for ticket in list(self.tickets):
            self.carry_out(self.session.refused(ticket, Conflict("no")))
        for rid, ear in list(self.ears.items()):
            truth = self.truth[rid]
            if ear.given < truth.made:
                self.carry_out(self.session.delta(delta(rid, ear.given + 1, truth.made)))
            self.carry_out(self.session.ended(ending(rid, truth.made, truth.over_kind)))
        assert not self.owed
        assert not self.session.busy


LawMachine.TestCase.settings = settings(max_examples=200, stateful_step_count=40, deadline=None)
test_the_law = LawMachine.TestCase


def test_frames_of_one_session_are_json() -> None:
    """What is sent can be read by any JSON reader."""
    session = ready()
    for event in events(session.frame('{"type":"ping"}') + start(session, "r") + session.draining(1.0)):
        assert json.loads(wire.encode(event))["type"]


def test_an_estimate_has_one_answer() -> None:
    session = ready()
    asked = wire.CacheEstimate("k", "hi")
    assert session.frame(frame(asked)) == [Estimate(asked)]
    assert not session.busy
    error = the_error(session.estimate_refused("k", NotFound("no such message")))
    assert (error.code, error.idempotency_key) == ("not_found", "k")


def test_no_estimate_without_a_model_or_while_stopping() -> None:
    asked = frame(wire.CacheEstimate("k", "hi"))
    error = the_error(Session(IDENTITY, max_responses=8).frame(asked))
    assert (error.code, error.idempotency_key) == ("not_ready", "k")
    session = ready()
    session.draining(1.0)
    assert the_error(session.frame(asked)).code == "draining"


def test_warming_is_a_hint() -> None:
    warm = frame(wire.ConversationWarm("c"))
    assert Session(IDENTITY, max_responses=8).frame(warm) == []
    session = ready()
    assert session.frame(warm) == [WarmUp("c")]
    error = the_error(session.warm_refused("c", NotFound("no such conversation")))
    assert (error.code, error.conversation_id) == ("not_found", "c")
    session.draining(1.0)
    assert session.frame(warm) == []


def test_progress_of_a_restore_is_passed_on() -> None:
    session = ready()
    start(session, "r")
    event = wire.ResponseRestoring("r", 64, 128)
    assert session.status(event) == [Send(event)]
    assert session.status(wire.ResponseRestoring("other", 64, 128)) == []


def test_an_acknowledgement_counts_for_what_was_sent_here() -> None:
    session = ready()
    start(session, "r")
    session.delta(wire.ResponseDelta("r", 1, 4, "four"))
    assert session.frame(frame(wire.ResponseAck("r", 3))) == [Acknowledge("r", 3)]
    assert session.frame(frame(wire.ResponseAck("r", 9))) == [Acknowledge("r", 4)], "never more than was sent"
    assert session.frame(frame(wire.ResponseAck("of another", 3))) == []
    session.ended(ending("r", 4))
    assert session.frame(frame(wire.ResponseAck("r", 3))) == [], "the whole comes as well"
    assert session.frame(frame(wire.ResponseAck("r", 4))) == [Acknowledge("r", 4, USAGE.output_tokens)]
    assert not session.busy


def test_only_the_last_endings_are_kept_for_acknowledgements() -> None:
    session = ready()
    ids = [f"r{number}" for number in range(MAX_ENDED + 1)]
    for rid in ids:
        start(session, rid)
        session.ended(ending(rid, 0))
    assert session.frame(frame(wire.ResponseAck(ids[0], 0))) == []
    assert session.frame(frame(wire.ResponseAck(ids[1], 0))) == [Acknowledge(ids[1], 0, USAGE.output_tokens)]

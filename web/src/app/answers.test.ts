import { afterEach, beforeEach, describe, expect, it, vi } from "vitest";
import type { AnswerEvent, ClientEvent, ResponseEnded } from "../wire/events";
import { Answers } from "./answers.svelte";
import { Conversation } from "./conversation.svelte";
import { Message } from "./message.svelte";

const delta = (seq: number): AnswerEvent => ({
  type: "response.output_text.delta",
  response_id: "r",
  from_seq: seq,
  seq,
  delta: "x",
});
const end = { type: "response.completed", response_id: "r", last_seq: 4 } as ResponseEnded;

describe("Answers", () => {
  const sent: ClientEvent[] = [];

  beforeEach(() => {
    vi.useFakeTimers();
    vi.stubGlobal("document", { hidden: true }); // then painting takes a timer, which is faked
    sent.length = 0;
  });
  afterEach(() => {
    vi.unstubAllGlobals();
    vi.useRealTimers();
  });

  it("acknowledges what was painted, once a second and at the end", () => {
    const answers = new Answers({ send: (event) => sent.push(event) > 0, onPhase: () => {}, onHole: () => {} });
    answers.follow(new Conversation("c"), new Message("a", "u", "assistant"), "r");
    const acknowledged = (): number[] => sent.map((event) => (event.type === "response.ack" ? event.seq : -1));
    answers.take(delta(1));
    expect(acknowledged()).toEqual([1]);
    answers.take(delta(2));
    vi.advanceTimersByTime(500);
    expect(acknowledged()).toEqual([1]);
    vi.advanceTimersByTime(600);
    answers.take(delta(3));
    expect(acknowledged()).toEqual([1]); // it is not painted yet
    vi.advanceTimersByTime(500);
    expect(acknowledged()).toEqual([1, 3]);
    answers.take(delta(4));
    answers.take(end);
    expect(acknowledged()).toEqual([1, 3, 4]);
    expect(sent.at(-1)).toEqual({ type: "response.ack", response_id: "r", seq: 4 });
  });
});

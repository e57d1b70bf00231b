import { describe, expect, it } from "vitest";
import type { AnswerEvent, ResponseEnded, TextDelta } from "../wire/events";
import { newAnswer, step, type Answer } from "./answer";

const ID = "resp_1";
const PIECES = ["The ", "capital", " of", " France", " is", " Paris", ".", " 🇫🇷"];

function delta(from: number, to: number): TextDelta {
  const text = PIECES.slice(from - 1, to).join("");
  return { type: "response.output_text.delta", response_id: ID, from_seq: from, seq: to, delta: text };
}

function ended(lastSeq: number): ResponseEnded {
  return {
    type: "response.completed",
    response_id: ID,
    conversation_id: "conv_1",
    message_id: "msg_1",
    finish_reason: "end",
    last_seq: lastSeq,
    usage: { prompt_tokens: 5, gpu_hit: 3, disk_hit: 0, computed: 2, output_tokens: 8, total_tokens: 13 },
    timings: { queue_ms: 1, ttft_ms: 2, tpot_ms: 3, tokens_per_s: 4, total_ms: 5 },
    cost: {
      currency: "CNY",
      total_nano: 1,
      without_cache_nano: 2,
      saved_nano: 1,
      prompt_nano: 1,
      output_nano: 0,
      price_version: "1",
    },
  };
}

function play(events: AnswerEvent[], answer: Answer = newAnswer(ID)): { answer: Answer; holes: number } {
  let holes = 0;
  for (const event of events) {
    const next = step(answer, event);
    answer = next.answer;
    if (next.hole) holes += 1;
  }
  return { answer, holes };
}

describe("step", () => {
  it("walks from queue over prefill and text to the end", () => {
    const phases: string[] = [];
    let answer = newAnswer(ID);
    const events: AnswerEvent[] = [
      { type: "response.queued", response_id: ID, position: 2 },
      { type: "response.restoring", response_id: ID, done: 64, total: 128 },
      { type: "response.prefill", response_id: ID, total: 40, gpu_hit: 30, disk_hit: 0, computed: 10, done: 35 },
      delta(1, 1),
      delta(2, 8),
      ended(8),
    ];
    for (const event of events) {
      answer = step(answer, event).answer;
      phases.push(answer.phase);
    }
    expect(phases).toEqual(["queued", "restoring", "prefill", "streaming", "streaming", "ended"]);
    expect(answer.prefill).toEqual({ total: 40, gpuHit: 30, diskHit: 0, computed: 10, done: 35 });
    expect(answer.text).toBe(PIECES.join(""));
    expect(answer.end?.usage.output_tokens).toBe(8);
  });

  it("takes each piece exactly once when every delta comes twice", () => {
    const { answer, holes } = play([delta(1, 1), delta(1, 1), delta(2, 4), delta(2, 4), delta(3, 4), delta(5, 8)]);
    expect(answer.text).toBe(PIECES.join(""));
    expect(holes).toBe(0);
  });

  it.each(PIECES.map((_, cut) => cut))("is whole after a cut behind piece %d and a resume", (cut) => {
    const first = play(cut > 0 ? [delta(1, cut)] : []).answer;
    const late = play([delta(cut + 1, 8), ended(8)], first);
    expect(late.answer.text).toBe(PIECES.join(""));
    expect(late.answer.phase).toBe("ended");
    expect(late.holes).toBe(0);
  });

  it("shows a hole and changes nothing when pieces are missing or straddle", () => {
    const before = play([delta(1, 2)]).answer;
    expect(step(before, delta(4, 5))).toEqual({ answer: before, hole: true });
    expect(step(before, delta(2, 5))).toEqual({ answer: before, hole: true });
    expect(step(before, ended(8))).toEqual({ answer: before, hole: true });
  });

  it("takes nothing after the end, and nothing of another response", () => {
    const whole = play([delta(1, 8), ended(8)]).answer;
    expect(step(whole, { ...delta(8, 8), from_seq: 9, seq: 9 }).answer).toBe(whole);
    const fresh = newAnswer(ID);
    expect(step(fresh, { ...delta(1, 1), response_id: "resp_2" }).answer).toBe(fresh);
  });

  it("does not fall back from text to waiting when a resume repeats the queue", () => {
    const { answer } = play([delta(1, 3), { type: "response.queued", response_id: ID, position: 1 }]);
    expect(answer.phase).toBe("streaming");
  });
});

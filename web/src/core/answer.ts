/**
 * One running response, folded from wire events. Pure.
 *
 * Law: `seq` is the last piece whose text is in `text`. A delta is taken only when it starts at
 * `seq + 1`; one that ends at or before `seq` was seen already; any other shows a hole, and so does
 * an ending whose `last_seq` lies beyond `seq`. A hole changes nothing: the caller subscribes again
 * after `seq`. So every piece is in `text` exactly once, in order, and an ended answer is whole.
 */

import type { AnswerEvent, ResponseEnded, ResponsePrefill } from "../wire/events";

export type Phase = "sent" | "queued" | "restoring" | "prefill" | "streaming" | "ended";

export interface Prefill {
  total: number;
  gpuHit: number;
  diskHit: number;
  computed: number;
  done: number;
}

export interface Answer {
  readonly responseId: string;
  readonly phase: Phase;
  /** 1 is next to be admitted; 0 when not queued. */
  readonly position: number;
  /** How much of the prompt's KV has come back from disk. */
  readonly restoring: { readonly done: number; readonly total: number } | null;
  readonly prefill: Prefill | null;
  readonly seq: number;
  /** Text of this response alone: what a continued message held before is not in it. */
  readonly text: string;
  readonly end: ResponseEnded | null;
}

export interface Step {
  readonly answer: Answer;
  /** Pieces are missing: subscribe again after `answer.seq`. */
  readonly hole: boolean;
}

export function newAnswer(responseId: string): Answer {
  return { responseId, phase: "sent", position: 0, restoring: null, prefill: null, seq: 0, text: "", end: null };
}

function prefillOf(event: ResponsePrefill): Prefill {
  return {
    total: event.total,
    gpuHit: event.gpu_hit,
    diskHit: event.disk_hit,
    computed: event.computed,
    done: event.done,
  };
}

export function step(answer: Answer, event: AnswerEvent): Step {
  const same: Step = { answer, hole: false };
  if (answer.phase === "ended" || event.response_id !== answer.responseId) return same;
  switch (event.type) {
    case "response.queued":
      if (answer.seq > 0) return same;
      return { answer: { ...answer, phase: "queued", position: event.position }, hole: false };
    case "response.restoring": {
      if (answer.seq > 0) return same;
      const { done, total } = event;
      return { answer: { ...answer, phase: "restoring", position: 0, restoring: { done, total } }, hole: false };
    }
    case "response.prefill":
      if (answer.seq > 0) return { answer: { ...answer, prefill: prefillOf(event) }, hole: false };
      return { answer: { ...answer, phase: "prefill", position: 0, prefill: prefillOf(event) }, hole: false };
    case "response.output_text.delta":
      if (event.seq <= answer.seq) return same;
      if (event.from_seq !== answer.seq + 1) return { answer, hole: true };
      return {
        answer: { ...answer, phase: "streaming", position: 0, seq: event.seq, text: answer.text + event.delta },
        hole: false,
      };
    default:
      if (event.last_seq > answer.seq) return { answer, hole: true };
      return { answer: { ...answer, phase: "ended", position: 0, end: event }, hole: false };
  }
}

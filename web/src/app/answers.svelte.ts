import { step, type Answer } from "../core/answer";
import { browserFrame, Painter } from "../core/painter";
import type { AnswerEvent, ClientEvent } from "../wire/events";
import type { Conversation } from "./conversation.svelte";
import type { Message } from "./message.svelte";

/** An answer under way and where it is shown. */
export interface Live {
  readonly conversation: Conversation;
  readonly message: Message;
  answer: Answer;
  /** When the server was last told how much is here, in ms. */
  acknowledgedAt?: number;
}

/** Between two acknowledgements of one answer; its end has one of its own. */
const ACKNOWLEDGE_MS = 1000;

export interface AnswerHooks {
  /** False if it could not be sent: the next connection resumes everything anyway. */
  send(event: ClientEvent): boolean;
  /** An answer went from one phase to the next. */
  onPhase(live: Live): void;
  /** Pieces are missing: this connection cannot be trusted any more. */
  onHole(): void;
}

/** All answers under way, whichever conversation they belong to, from their first event to their ending. */
export class Answers {
  /** The conversations in which an answer is under way. */
  busy = $state.raw<ReadonlySet<string>>(new Set());

  readonly #live = new Map<string, Live>();
  readonly #painter = new Painter<Live>(browserFrame, (dirty) => {
    for (const live of dirty) {
      live.message.paint(live.answer);
      this.#acknowledge(live);
    }
  });

  constructor(private readonly hooks: AnswerHooks) {}

  has(responseId: string): boolean {
    return this.#live.has(responseId);
  }

  follow(conversation: Conversation, message: Message, responseId: string): void {
    this.#live.set(responseId, { conversation, message, answer: message.begin(responseId) });
    this.#countBusy();
  }

  /** Asks for the rest of one answer, after the last piece that is here. */
  subscribe(responseId: string): void {
    const live = this.#live.get(responseId);
    if (!live) return;
    this.hooks.send({ type: "response.subscribe", response_id: responseId, after_seq: live.answer.seq });
    this.cancelIfStopping(live.message);
  }

  /** On a new connection: asks for the rest of all. */
  resume(): void {
    for (const responseId of this.#live.keys()) this.subscribe(responseId);
  }

  /** Also sent again after a lost connection, for nobody knows whether it arrived. */
  cancelIfStopping(message: Message): void {
    const id = message.live?.responseId;
    if (message.stopping && id) this.hooks.send({ type: "response.cancel", response_id: id });
  }

  take(event: AnswerEvent): void {
    const live = this.#live.get(event.response_id);
    if (!live) return;
    const before = live.answer;
    const { answer, hole } = step(before, event);
    if (hole) return this.hooks.onHole();
    if (answer === before) return;
    live.answer = answer;
    const isNewPhase = answer.phase !== before.phase;
    if (answer.phase === "ended") this.#forget(event.response_id);
    this.#painter.touch(live, isNewPhase); // the first piece and the ending are new phases
    if (isNewPhase) this.hooks.onPhase(live);
  }

  /** The server does not know this response (any more). */
  drop(responseId: string): Live | undefined {
    const live = this.#live.get(responseId);
    if (!live) return undefined;
    live.message.retract();
    this.#forget(responseId);
    return live;
  }

  /** Tells the server what was painted, which its ledger keeps beside what was sent. */
  #acknowledge(live: Live): void {
    const now = Date.now();
    const { responseId, seq, phase } = live.answer;
    if (phase !== "ended" && (seq === 0 || now - (live.acknowledgedAt ?? 0) < ACKNOWLEDGE_MS)) return;
    live.acknowledgedAt = now;
    this.hooks.send({ type: "response.ack", response_id: responseId, seq });
  }

  #forget(responseId: string): void {
    this.#live.delete(responseId);
    this.#countBusy();
  }

  #countBusy(): void {
    const ids = [...this.#live.values()].map(({ conversation }) => conversation.id);
    this.busy = new Set(ids.filter((id) => id !== null));
  }
}

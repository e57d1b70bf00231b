import { newAnswer, type Answer } from "../core/answer";
import type { Node } from "../core/tree";
import { BlockStream, type Block } from "../text/blocks";
import type { Definitions } from "../text/links";
import type { MessageView, ResponseEnded, ResponseSummary, Role } from "../wire/events";

/** One message as it is shown. `key` stays the same when the server gives a local message its id. */
export class Message implements Node {
  readonly key: string;
  readonly role: Role;
  id = $state("");
  parentId = $state.raw<string | null>(null);
  text = $state.raw("");
  /** An answer's text as blocks: many that will not change any more, then the last ones. */
  chunks = $state.raw<readonly (readonly Block[])[]>([]);
  lastBlocks = $state.raw<readonly Block[]>([]);
  /** Where the labels of its links lead. */
  definitions = $state.raw<Definitions>(new Map());
  responses = $state.raw<readonly ResponseSummary[]>([]);
  /** The response that is being written into this message. */
  live = $state.raw<Answer | null>(null);
  /** So many of the oldest turns the model did not see when it wrote this. */
  droppedTurns = $state(0);
  /** What the editor of this message holds; null while it is not being edited. */
  editor = $state.raw<string | null>(null);
  /** Stop was asked for and has not happened yet. */
  stopping = $state(false);

  #stream = new BlockStream();
  #liveFrom = 0;

  constructor(id: string, parentId: string | null, role: Role) {
    this.key = id;
    this.id = id;
    this.parentId = parentId;
    this.role = role;
  }

  /** A response that the server's view shows as under way. */
  get openResponse(): string | null {
    return this.responses.find((response) => response.status === "open")?.response_id ?? null;
  }

  static fromView(view: MessageView): Message {
    const message = new Message(view.id, view.parent_id, view.role);
    message.refresh(view);
    return message;
  }

  /** As the server would show it if what is under way had ended. */
  toView(): MessageView {
    const responses = this.responses.filter(({ status }) => status !== "open");
    return { id: this.id, parent_id: this.parentId, role: this.role, text: this.text, status: "", created_at: "", responses };
  }

  /** The server's latest word on this message. What streams in knows better; only what lies before it is taken. */
  refresh(view: MessageView): void {
    this.parentId = view.parent_id;
    if (this.live) {
      if (view.status === "streaming" && view.text.length !== this.#liveFrom) this.#rebase(view.text, this.live);
      return;
    }
    this.responses = view.responses;
    this.droppedTurns = this.last?.dropped_turns ?? 0;
    if (view.text !== this.text) this.#replaceText(view.text);
  }

  /** Text of a response that begins now is appended to what the message holds. */
  begin(responseId: string): Answer {
    const answer = newAnswer(responseId);
    this.#liveFrom = this.text.length;
    this.live = answer;
    return answer;
  }

  paint(answer: Answer): void {
    const shown = this.text.length - this.#liveFrom;
    if (answer.text.length > shown) this.#append(answer.text.slice(shown));
    this.live = answer;
    if (answer.end) this.#settle(answer.end);
  }

  /** Forgets a response that never came to be. */
  retract(): void {
    this.live = null;
    this.stopping = false;
  }

  /** The response that was last to write here; null before any was. */
  get last(): ResponseSummary | null {
    return this.responses.at(-1) ?? null;
  }

  #settle(end: ResponseEnded): void {
    const summary: ResponseSummary = {
      response_id: end.response_id,
      status: end.type.slice("response.".length) as ResponseSummary["status"],
      finish_reason: end.finish_reason,
      usage: end.usage,
      timings: end.timings,
      cost: end.cost,
      xray: end.xray ?? null,
      error: end.error ?? null,
      dropped_turns: this.droppedTurns,
    };
    this.responses = [...this.responses.filter((known) => known.response_id !== end.response_id), summary];
    this.live = null;
    this.stopping = false;
  }

  #rebase(base: string, live: Answer): void {
    this.#replaceText(base + live.text);
    this.#liveFrom = base.length;
  }

  #replaceText(text: string): void {
    this.#stream = new BlockStream();
    this.text = "";
    this.#append(text);
  }

  #append(text: string): void {
    this.text += text;
    if (this.role !== "assistant") return;
    this.#stream.push(text);
    this.chunks = this.#stream.chunks;
    this.lastBlocks = this.#stream.last;
    this.definitions = this.#stream.definitions;
  }
}

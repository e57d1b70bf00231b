/**
 * What was asked of the server and is not yet confirmed.
 *
 * It is shown at once, kept in the outbox, and sent on each new connection until the server has
 * confirmed it; then it is an answer like any other. What is refused, or stopped before it was
 * sent, is taken back, and its text with it.
 */

import type { Outbox, PendingCreate } from "../core/outbox";
import type { ClientEvent, CreateRequest } from "../wire/events";
import type { Conversation } from "./conversation.svelte";
import type { Message } from "./message.svelte";

export interface RequestHooks {
  newKey(): string;
  /** False if it could not be sent now. */
  send(event: ClientEvent): boolean;
  /** A request came to nothing. `conversation` is where it was shown, if it was. */
  onTakenBack(request: CreateRequest, conversation: Conversation | null, conversationId: string | null): void;
}

export class Requests {
  readonly #shownIn = new Map<string, Conversation>();
  readonly #sent = new Set<string>();

  constructor(
    private readonly outbox: Outbox,
    private readonly hooks: RequestHooks,
  ) {
    for (const { key } of outbox.all()) this.#sent.add(key); // perhaps sent before the reload
  }

  ask(conversation: Conversation, request: CreateRequest): void {
    const pending = { key: this.hooks.newKey(), request, conversationId: conversation.id };
    this.outbox.add(pending);
    this.#show(conversation, pending);
    this.#post(pending);
  }

  /** Shows what was asked for in this conversation before a reload. */
  showIn(conversation: Conversation): void {
    for (const pending of this.outbox.all()) {
      const known = this.#shownIn.get(pending.key) ?? conversation;
      if (pending.conversationId === conversation.id && known === conversation) this.#show(conversation, pending);
    }
  }

  /** On a new connection: nobody knows which of them arrived. */
  sendAll(): void {
    for (const pending of this.outbox.all()) this.#post(pending);
  }

  /** The server has taken it. Returns the conversation in which it is shown. */
  confirmed(key: string): Conversation | null {
    this.outbox.remove(key);
    const conversation = this.#shownIn.get(key) ?? null;
    this.#shownIn.delete(key);
    return conversation;
  }

  /** The server refused it. False if it is not known here. */
  refused(key: string): boolean {
    const pending = this.outbox.all().find((each) => each.key === key);
    if (pending) this.#takeBack(pending);
    return pending !== undefined;
  }

  /** Takes the request for this answer back, if it was never sent. */
  takeBackUnsent(conversation: Conversation, message: Message): boolean {
    const pending = this.outbox.all().find(({ key }) => conversation.echoed(key) === message);
    if (!pending || this.#sent.has(pending.key)) return false;
    this.#takeBack(pending);
    return true;
  }

  #show(conversation: Conversation, pending: PendingCreate): void {
    this.#shownIn.set(pending.key, conversation);
    conversation.echo(pending);
  }

  #post({ key, request }: PendingCreate): void {
    if (this.hooks.send({ type: "response.create", idempotency_key: key, ...request })) this.#sent.add(key);
  }

  #takeBack({ key, request, conversationId }: PendingCreate): void {
    const conversation = this.confirmed(key);
    conversation?.retract(key);
    this.hooks.onTakenBack(request, conversation, conversation?.id ?? conversationId);
  }
}

/** The conversations this page has met, and how they are read from the server. */

import type { Branches } from "../core/branches";
import * as http from "../wire/http";
import { Conversation } from "./conversation.svelte";
import type { Kept } from "./kept";
import type { Message } from "./message.svelte";

export class Shelf {
  readonly #met = new Map<string, Conversation>();

  constructor(
    private readonly branches: Branches,
    private readonly kept: Kept,
    /** The conversation was read, and is as the server has it now. */
    private readonly onRead: (conversation: Conversation) => void,
  ) {}

  find(id: string): Conversation | undefined {
    return this.#met.get(id);
  }

  get(id: string): Conversation {
    const known = this.#met.get(id);
    if (known) return known;
    const conversation = new Conversation(id);
    this.#met.set(id, conversation);
    return conversation;
  }

  /** The server has made a conversation that was new. */
  put(id: string, conversation: Conversation): void {
    this.#met.set(id, conversation);
  }

  /** It was deleted: nothing of it is kept. */
  drop(id: string): void {
    const conversation = this.#met.get(id);
    this.#met.delete(id);
    this.branches.forget(id);
    this.kept.forget(id);
    if (conversation) conversation.state = "missing";
  }

  async read(conversation: Conversation): Promise<void> {
    const { id } = conversation;
    if (id === null) return;
    try {
      await this.#fetch(conversation, id);
    } catch (error) {
      if (!(error instanceof http.ApiError)) throw error;
      if (error.status === 404) this.#gone(conversation, id);
      else if (conversation.state === "loading") this.#showKept(conversation, id);
      return;
    }
    this.keep(conversation);
    this.onRead(conversation);
  }

  /** Keeps what is shown for a reload while the server is away. */
  keep(conversation: Conversation): void {
    const view = conversation.isKept || conversation.state !== "ready" ? null : conversation.toView();
    if (view) this.kept.put(view);
  }

  /** Shows the version `offset` places further, now and after a reload. Returns its number and how many there are. */
  switchVersion(conversation: Conversation, message: Message, offset: number): [number, number] | null {
    const versions = conversation.versionsOf(message);
    const at = versions.indexOf(message) + offset;
    const wanted = versions[at];
    if (!wanted) return null;
    conversation.choose(wanted);
    if (conversation.id !== null) this.branches.choose(conversation.id, conversation.leafId, conversation.tipId);
    return [at + 1, versions.length];
  }

  /** Merges a view that knows all that was confirmed, unless a newer one has been asked for. */
  async #fetch(conversation: Conversation, id: string): Promise<void> {
    const load = conversation.nextLoad();
    let view, confirmed;
    do {
      confirmed = conversation.confirmed;
      view = await http.getConversation(id);
    } while (confirmed !== conversation.confirmed);
    if (!conversation.isLatest(load)) return;
    conversation.merge(view, this.branches.chosen(id, view.tip_id));
  }

  #showKept(conversation: Conversation, id: string): void {
    const view = this.kept.get(id);
    if (view) conversation.merge(view, this.branches.chosen(id, view.tip_id));
    else conversation.state = "failed";
    conversation.isKept = view !== null;
  }

  #gone(conversation: Conversation, id: string): void {
    conversation.state = "missing";
    this.branches.forget(id);
    this.kept.forget(id);
  }
}

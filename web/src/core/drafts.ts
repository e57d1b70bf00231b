/** Unsent text, one draft for each conversation, kept in the browser. */

import type { KeyValueStore } from "./outbox";

export class Drafts {
  constructor(
    private readonly storage: KeyValueStore,
    private readonly prefix: string,
  ) {}

  /** `conversationId` null is the conversation yet to be made. */
  get(conversationId: string | null): string {
    return this.storage.getItem(this.#name(conversationId)) ?? "";
  }

  set(conversationId: string | null, text: string): void {
    if (text === "") this.storage.removeItem(this.#name(conversationId));
    else this.storage.setItem(this.#name(conversationId), text);
  }

  #name(conversationId: string | null): string {
    return `${this.prefix}draft:${conversationId ?? "new"}`;
  }
}

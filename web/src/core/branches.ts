/**
 * Which branch of a conversation was chosen, so that a reload shows it again. Kept in the browser.
 *
 * A choice holds as long as the conversation has not gone on: with a newer tip, here or elsewhere,
 * the newest is shown. So only branches other than the newest take any space.
 */

import type { KeyValueStore } from "./outbox";

export class Branches {
  constructor(
    private readonly storage: KeyValueStore,
    private readonly prefix: string,
  ) {}

  /** `leafId` was chosen while `tipId` was the newest message. */
  choose(conversationId: string, leafId: string | null, tipId: string | null): void {
    if (leafId === null || leafId === tipId) this.forget(conversationId);
    else this.storage.setItem(this.#name(conversationId), JSON.stringify([tipId, leafId]));
  }

  /** The last message of the chosen branch; null if none was chosen, or the conversation went on since. */
  chosen(conversationId: string, tipId: string | null): string | null {
    const stored = this.storage.getItem(this.#name(conversationId)) ?? "";
    const before = `[${JSON.stringify(tipId)},"`;
    return stored.startsWith(before) ? stored.slice(before.length, -2) : null;
  }

  forget(conversationId: string): void {
    this.storage.removeItem(this.#name(conversationId));
  }

  #name(conversationId: string): string {
    return `${this.prefix}branch:${conversationId}`;
  }
}

/**
 * Conversations as they were last seen, kept in the browser: for a reload while the server is away.
 *
 * The newest few, and no more than fit; what is deleted is forgotten here too.
 */

import type { KeyValueStore } from "../core/outbox";
import type { ConversationHead, ConversationView } from "../wire/events";

const MOST_KEPT = 12;
const MOST_CHARS = 400_000;

export class Kept {
  constructor(
    private readonly storage: KeyValueStore,
    private readonly prefix: string,
  ) {}

  get(id: string): ConversationView | null {
    return parsed<ConversationView>(this.storage.getItem(this.#name(id)));
  }

  put(view: ConversationView): void {
    const text = JSON.stringify(view);
    if (text.length > MOST_CHARS) return this.forget(view.id);
    const ids = [view.id, ...this.#ids().filter((id) => id !== view.id)];
    for (const id of ids.slice(MOST_KEPT)) this.storage.removeItem(this.#name(id));
    this.#setIds(ids.slice(0, MOST_KEPT));
    this.storage.setItem(this.#name(view.id), text);
  }

  forget(id: string): void {
    this.storage.removeItem(this.#name(id));
    this.#setIds(this.#ids().filter((each) => each !== id));
  }

  get list(): readonly ConversationHead[] {
    return parsed<ConversationHead[]>(this.storage.getItem(`${this.prefix}kept-list`)) ?? [];
  }

  putList(heads: readonly ConversationHead[]): void {
    this.storage.setItem(`${this.prefix}kept-list`, JSON.stringify(heads));
  }

  #ids(): string[] {
    return parsed<string[]>(this.storage.getItem(`${this.prefix}kept`)) ?? [];
  }

  #setIds(ids: readonly string[]): void {
    this.storage.setItem(`${this.prefix}kept`, JSON.stringify(ids));
  }

  #name(id: string): string {
    return `${this.prefix}kept:${id}`;
  }
}

function parsed<T>(stored: string | null): T | null {
  try {
    return JSON.parse(stored ?? "null") as T | null;
  } catch {
    return null;
  }
}

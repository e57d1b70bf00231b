/**
 * Answers that were asked for and not yet confirmed by the server.
 *
 * They are kept in the tab's storage, so that a reload or a lost connection sends them again under
 * the same idempotency key: the server then makes one answer, however often it was asked.
 */

import type { CreateRequest } from "../wire/events";

export interface PendingCreate {
  readonly key: string;
  readonly request: CreateRequest;
  /** The conversation it belongs to; null for one that the server has yet to make. */
  readonly conversationId: string | null;
}

export type KeyValueStore = Pick<Storage, "getItem" | "setItem" | "removeItem">;

export class Outbox {
  #pending: PendingCreate[];

  constructor(
    private readonly storage: KeyValueStore,
    private readonly name: string,
  ) {
    this.#pending = parsePending(storage.getItem(name));
  }

  all(): readonly PendingCreate[] {
    return this.#pending;
  }

  add(pending: PendingCreate): void {
    this.#write([...this.#pending, pending]);
  }

  remove(key: string): void {
    this.#write(this.#pending.filter((pending) => pending.key !== key));
  }

  #write(pending: PendingCreate[]): void {
    this.#pending = pending;
    if (pending.length === 0) this.storage.removeItem(this.name);
    else this.storage.setItem(this.name, JSON.stringify(pending));
  }
}

/** What an older page or a full disk left behind is dropped, not trusted. */
function parsePending(stored: string | null): PendingCreate[] {
  if (stored === null) return [];
  try {
    const value: unknown = JSON.parse(stored);
    return Array.isArray(value) ? value.filter(isPending) : [];
  } catch {
    return [];
  }
}

function isPending(value: unknown): value is PendingCreate {
  const pending = value as PendingCreate | null;
  return typeof pending?.key === "string" && typeof pending.request === "object" && pending.request !== null;
}

/** What the page needs of the browser, made safe to use everywhere it may run. */

import type { KeyValueStore } from "../core/outbox";

/** Storage that may be switched off or full: then it forgets, and the page goes on. */
export function safeStorage(open: () => Storage): KeyValueStore {
  const attempt = <T>(action: (storage: Storage) => T, otherwise: T): T => {
    try {
      return action(open());
    } catch (error) {
      if (error instanceof DOMException) return otherwise; // SecurityError, QuotaExceededError
      throw error;
    }
  };
  return {
    getItem: (name) => attempt((storage) => storage.getItem(name), null),
    setItem: (name, value) => attempt((storage) => storage.setItem(name, value), undefined),
    removeItem: (name) => attempt((storage) => storage.removeItem(name), undefined),
  };
}

/** 128 random bits. `crypto.randomUUID` is missing on plain http other than localhost. */
export function randomKey(): string {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}

/** Copies text; also on plain http, where `navigator.clipboard` is missing. */
export async function copyText(text: string): Promise<void> {
  if (navigator.clipboard) return navigator.clipboard.writeText(text);
  const area = document.createElement("textarea");
  area.value = text;
  area.className = "visually-hidden";
  document.body.append(area);
  area.select();
  document.execCommand("copy");
  area.remove();
}

const ROUTE = /^#\/c\/([^/]+)(?:\/([^/]+))?$/;

export type Place = "chat" | "reports" | "cache";

/** Which of the page's places the address names. */
export function routedPlace(): Place {
  const [, place] = /^#\/(reports|cache)$/.exec(location.hash) ?? [];
  return (place as Place | undefined) ?? "chat";
}

/** The conversation named by the address; null for a new one. */
export function routedConversation(): string | null {
  const [, id] = ROUTE.exec(location.hash) ?? [];
  return id === undefined ? null : decodeURIComponent(id);
}

/** The message in it that the address leads to. */
export function routedMessage(): string | null {
  const [, , id] = ROUTE.exec(location.hash) ?? [];
  return id === undefined ? null : decodeURIComponent(id);
}

export function routeTo(conversationId: string | null, messageId: string | null = null): string {
  if (conversationId === null) return "#/";
  const message = messageId === null ? "" : `/${encodeURIComponent(messageId)}`;
  return `#/c/${encodeURIComponent(conversationId)}${message}`;
}

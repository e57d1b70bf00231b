/** Which keys do what, wherever the focus is. */

export type Shortcut = "new" | "search" | "sidebar" | "stop" | "help" | "earlier" | "later";

type Keys = Pick<KeyboardEvent, "key" | "ctrlKey" | "metaKey" | "shiftKey" | "altKey" | "isComposing" | "target">;

/** A field in which something is written: plain keys belong to it. An empty message field has no use for arrows. */
function keepsKeys(target: EventTarget | null, key: string): boolean {
  if (!(target instanceof HTMLElement)) return false;
  if (target instanceof HTMLTextAreaElement) return !(key.startsWith("Arrow") && target.id === "message" && target.value === "");
  const isScroller = key.startsWith("Arrow") && target.tabIndex >= 0 && target.scrollWidth > target.clientWidth;
  return isScroller || target instanceof HTMLInputElement || target instanceof HTMLSelectElement || target.isContentEditable;
}

export function shortcutOf(event: Keys): Shortcut | null {
  if (event.isComposing || event.altKey) return null;
  const key = event.key.length === 1 ? event.key.toLowerCase() : event.key;
  if (event.ctrlKey || event.metaKey) {
    if (event.shiftKey) return key === "o" ? "new" : null;
    return key === "k" ? "search" : key === "b" ? "sidebar" : null;
  }
  if (key === "Escape") return "stop";
  if (keepsKeys(event.target, key)) return null;
  if (key === "?") return "help";
  if (event.shiftKey) return null;
  return key === "ArrowLeft" ? "earlier" : key === "ArrowRight" ? "later" : null;
}

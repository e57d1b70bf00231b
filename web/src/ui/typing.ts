/** What the text fields have in common. */

import type { Attachment } from "svelte/attachments";

/**
 * Whether this key press sends. Enter that ends an input-method composition does not (some browsers
 * only tell by key code 229), nor with Shift, nor on touch keyboards, which have no other new line.
 */
export function isSendKey(event: KeyboardEvent): boolean {
  if (event.key !== "Enter" || event.shiftKey || event.altKey) return false;
  if (event.isComposing || event.keyCode === 229) return false;
  return event.ctrlKey || event.metaKey || !matchMedia("(pointer: coarse)").matches;
}

/** Keeps a text area as high as its text; `text` is read so that changes from outside count too. */
export function autosize(text: () => string): Attachment<HTMLTextAreaElement> {
  return (area) => {
    text();
    area.style.height = "auto";
    area.style.height = `${area.scrollHeight}px`;
  };
}

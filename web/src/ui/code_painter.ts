/**
 * The text of a code block, coloured as it streams.
 *
 * What came since the last colouring hangs behind as plain text, so a piece costs one text node. Colouring
 * begins anew from the top each time and therefore waits, the longer the longer it took: it never takes
 * more than a twentieth of the time. Without a highlighter for the language the text stays plain.
 */

import { highlighted } from "./highlight";

const MOST_CHARS = 60_000;
const FIRST_WAIT_MS = 250;
const SHARE = 20;

export class CodePainter {
  #text = "";
  #language = "";
  /** So many characters are coloured. */
  #coloured = 0;
  #tail = document.createTextNode("");
  #timer: ReturnType<typeof setTimeout> | undefined;
  #tookMs = 0;
  #gone = false;

  constructor(private readonly element: HTMLElement) {
    element.replaceChildren(this.#tail);
  }

  /** `closed`: no more will come. */
  show(text: string, language: string, closed: boolean): void {
    if (!text.startsWith(this.#text) || language !== this.#language) this.#restart();
    this.#text = text;
    this.#language = language;
    this.#tail.data = text.slice(this.#coloured);
    if (this.#coloured === text.length || text.length > MOST_CHARS || language === "") return;
    this.#schedule(closed ? 0 : Math.max(FIRST_WAIT_MS, this.#tookMs * SHARE), closed);
  }

  destroy(): void {
    this.#gone = true;
    clearTimeout(this.#timer);
  }

  #restart(): void {
    this.#coloured = 0;
    this.#tail = document.createTextNode("");
    this.element.replaceChildren(this.#tail);
  }

  #schedule(waitMs: number, sooner: boolean): void {
    if (this.#timer !== undefined && !sooner) return;
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => void this.#colour(), waitMs);
  }

  async #colour(): Promise<void> {
    const text = this.#text;
    const colour = await highlighted(this.#language);
    this.#timer = undefined;
    if (!colour || this.#gone || !this.#text.startsWith(text)) return;
    const began = performance.now();
    const fragment = colour(text);
    this.#coloured = text.length;
    this.#tail = document.createTextNode(this.#text.slice(text.length));
    this.element.replaceChildren(fragment, this.#tail);
    this.#tookMs = performance.now() - began;
  }
}

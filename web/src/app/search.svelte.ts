/** What is searched for, and what was found: page by page, and only ever the answer to the last question. */

import { told } from "../text/failures";
import { ApiError } from "../wire/http";
import type { Hit, HitPage } from "../wire/pages";

const PATIENCE_MS = 120;
/** A page may be empty and yet not the last: so many are asked for in a row. */
const MOST_EMPTY = 8;

export class Search {
  query = $state("");
  hits = $state.raw<readonly Hit[]>([]);
  state = $state<"idle" | "searching" | "found" | "failed">("idle");
  error = $state("");
  more = $state(false);
  #next: string | null = null;
  #asked = 0;
  #timer: ReturnType<typeof setTimeout> | undefined;

  constructor(private readonly ask: (query: string, before: string | null) => Promise<HitPage>) {}

  /** Something was typed: it is asked for when nothing more is for a moment. */
  write(query: string): void {
    this.query = query;
    clearTimeout(this.#timer);
    this.#asked += 1;
    if (query.trim() === "") return this.#forget();
    this.state = "searching";
    this.#timer = setTimeout(() => void this.#read(null), PATIENCE_MS);
  }

  async loadMore(): Promise<void> {
    if (this.#next !== null && this.state === "found") await this.#read(this.#next);
  }

  close(): void {
    clearTimeout(this.#timer);
    this.#asked += 1;
  }

  #forget(): void {
    this.hits = [];
    this.more = false;
    this.state = "idle";
  }

  async #read(before: string | null): Promise<void> {
    const asked = ++this.#asked;
    this.state = "searching";
    try {
      let [page, cursor] = [await this.ask(this.query, before), before];
      for (let tries = 1; page.hits.length === 0 && page.next !== null && tries < MOST_EMPTY; tries += 1) {
        cursor = page.next;
        page = await this.ask(this.query, cursor);
      }
      if (asked !== this.#asked) return;
      this.hits = before === null ? page.hits : [...this.hits, ...page.hits];
      this.#next = page.next;
      this.more = page.next !== null;
      this.state = "found";
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      if (asked !== this.#asked) return;
      this.#forget();
      this.error = told(error);
      this.state = "failed";
    }
  }
}

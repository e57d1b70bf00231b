/** The cache on show: its figures every few seconds, its tree less often, and what is done to it. */

import { withSample, type Sample } from "../core/samples";
import { told } from "../text/failures";
import { t } from "../text/strings.svelte";
import { ApiError } from "../wire/http";
import { cache, type CacheFigures, type CacheTree } from "../wire/pages";
import type { Notices } from "./notices.svelte";

const FIGURES_MS = 2000;
/** One look at the tree for so many at the figures. */
const TREE_EVERY = 5;
const KEEP_MS = 10 * 60_000;

export const WATCHED = ["evicted_pages", "spilled_blocks", "restored_blocks"] as const;
type Watched = (typeof WATCHED)[number];

/** Kept while the page is: going elsewhere and back does not lose them. */
let samples: readonly Sample<Watched>[] = [];

export class Cache {
  figures = $state.raw<CacheFigures | null>(null);
  tree = $state.raw<CacheTree | null>(null);
  samples = $state.raw(samples);
  /** Why nothing is shown. */
  error = $state.raw<{ text: string; refused: boolean } | null>(null);
  /** What is being done: the name of a conversation or a pin, or "clear". */
  busy = $state<string | null>(null);
  #looks = 0;

  constructor(private readonly notices: Notices) {}

  /** Looks until the returned function is called. Rests while the page is not seen. */
  watch(): () => void {
    void this.look();
    const timer = setInterval(() => document.hidden || void this.look(), FIGURES_MS);
    return () => clearInterval(timer);
  }

  async look(): Promise<void> {
    try {
      const wantsTree = this.#looks++ % TREE_EVERY === 0;
      const [figures, tree] = await Promise.all([cache.figures(), wantsTree ? cache.tree() : null]);
      this.#take(figures);
      if (tree) this.tree = tree;
      this.error = null;
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      this.error = { text: sayError(error), refused: error.status === 403 };
    }
  }

  async pin(id: string): Promise<void> {
    await this.#do(id, () => cache.pin(id));
  }

  async unpin(name: string): Promise<void> {
    await this.#do(name, () => cache.unpin(name));
  }

  async warm(id: string): Promise<void> {
    await this.#do(id, () => cache.warm(id));
  }

  async clear(disk: boolean): Promise<void> {
    await this.#do("clear", async () => {
      const { tokens, blocks } = await cache.clear(disk);
      this.notices.say(t.cacheCleared(String(tokens), String(blocks)));
    });
  }

  async #do(what: string, action: () => Promise<unknown>): Promise<void> {
    this.busy = what;
    try {
      await action();
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      this.notices.error(sayError(error));
    }
    this.busy = null;
    this.#looks = 0;
    await this.look();
  }

  #take(figures: CacheFigures): void {
    this.figures = figures;
    const counts = { ...figures.counters } as Record<Watched, number>;
    const watched = Object.fromEntries(WATCHED.map((name) => [name, counts[name]])) as Record<Watched, number>;
    samples = withSample(samples, { at: Date.now(), counts: watched }, KEEP_MS);
    this.samples = samples;
  }
}

function sayError(error: ApiError): string {
  return told(error);
}

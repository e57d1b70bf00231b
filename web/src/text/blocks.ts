/**
 * Text of an answer as a list of blocks, parsed as it streams. Pure.
 *
 * Law: a block is settled once whole lines show that another has begun after it; text to come can
 * change only what comes after it. So a push parses the last block again (and, while its first line
 * is not whole, the one before it). Settled blocks keep their identity, and so do the items and rows
 * of an open one whose source stayed the same.
 *
 * Understood: code, fenced or indented, headings, rules, quotes, lists and tasks, tables, formulas, where the
 * labels of links lead, and paragraphs; inside them what inline.ts understands. Everything else, HTML above all,
 * stays the text it is. A label may be defined after it was used: so what is a link by its label is known only
 * where it is shown, and no settled block changes.
 */

import type { Block, Kind } from "./block_types";
import { build } from "./build";
import type { Definitions, SafeLink } from "./links";
import { split, type Span } from "./spans";

export type { Block, Item, Row } from "./block_types";
export type { Inline } from "./inline";

const CHUNK = 24;

export class BlockStream {
  /** Settled blocks, so many in each: what shows them needs to look at none of them again. */
  chunks: readonly (readonly Block[])[] = [];
  /** The blocks after those, settled or not. */
  last: readonly Block[] = [];
  /** Where labels lead; the first word on one holds. */
  definitions: Definitions = new Map();

  #settled: Block[] = [];
  #tail = "";
  readonly #known = new Map<string, SafeLink>();
  /** There may be other definitions than last time. */
  #unsure = false;
  /** What the tail was parsed into last time. */
  #built: Built[] = [];

  get blocks(): readonly Block[] {
    return [...this.chunks.flat(), ...this.last];
  }

  push(text: string): void {
    this.#tail += text;
    const { spans, whole } = split(this.#tail, 0);
    this.#built = this.#parsed(spans);
    const settled = this.#built.slice(0, Math.max(0, whole - 1));
    for (const { block } of settled) this.#settle(block);
    this.#built = this.#built.slice(settled.length);
    this.last = [...this.#settled, ...this.#built.map(({ block }) => block)];
    this.#tail = this.#tail.slice(spans[settled.length]?.from ?? 0);
    this.#define();
  }

  /** What settled blocks define is known for good; the others may change their mind. */
  #define(): void {
    const open = this.#built.map(({ block }) => block).filter((block) => block.kind === "definition");
    if (open.length === 0 && !this.#unsure) return;
    this.#unsure = open.length > 0;
    const definitions = new Map(open.reverse().map(({ key, link }) => [key, link]));
    for (const [key, link] of this.#known) definitions.set(key, link);
    this.definitions = definitions;
  }

  #learn(key: string, link: SafeLink): void {
    this.#unsure = true;
    if (!this.#known.has(key)) this.#known.set(key, link);
  }

  #settle(block: Block): void {
    this.#settled.push(block);
    if (block.kind === "definition") this.#learn(block.key, block.link);
    if (this.#settled.length < CHUNK) return;
    this.chunks = [...this.chunks, this.#settled];
    this.#settled = [];
  }

  #parsed(spans: readonly Span[]): Built[] {
    return spans.map(({ kind, from, to }, at) => {
      const source = this.#tail.slice(from, to);
      const before = this.#built[at];
      if (before?.source === source && before.kind === kind) return before;
      return { kind, source, block: build(kind, source, 0, before?.block) };
    });
  }
}

interface Built {
  /** What it was split as: a formula without an end is shown as a paragraph. */
  readonly kind: Kind;
  readonly source: string;
  readonly block: Block;
}

export function parseBlocks(text: string): readonly Block[] {
  const stream = new BlockStream();
  stream.push(text);
  return stream.blocks;
}

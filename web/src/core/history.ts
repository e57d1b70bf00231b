/** The list of conversations as rows of known heights, and which of them are to be seen. Pure. */

import type { ConversationHead } from "../wire/events";

export type Group = "pinned" | "today" | "yesterday" | "week" | "older";

export type Row =
  | { readonly kind: "heading"; readonly group: Group }
  | { readonly kind: "item"; readonly group: Group; readonly head: ConversationHead };

/** Pinned ones first; each group of others after its heading. `heads` are newest first. */
export function rowsOf(heads: readonly ConversationHead[], now: Date): Row[] {
  const rows: Row[] = [];
  const pinned = heads.filter((head) => head.pinned);
  if (pinned.length > 0) rows.push({ kind: "heading", group: "pinned" });
  for (const head of pinned) rows.push({ kind: "item", group: "pinned", head });
  let last: Group | null = null;
  const starts = dayStarts(now);
  for (const head of heads) {
    if (head.pinned) continue;
    const group = groupOf(head.updated_at, starts);
    if (group !== last) rows.push({ kind: "heading", group });
    last = group;
    rows.push({ kind: "item", group, head });
  }
  return rows;
}

/** When today, yesterday and the week before them began, local time, as the server writes times. */
function dayStarts(now: Date): readonly [string, string, string] {
  const before = (days: number): string => new Date(now.getFullYear(), now.getMonth(), now.getDate() - days).toISOString().slice(0, -1);
  return [before(0), before(1), before(7)];
}

function groupOf(updatedAt: string, [today, yesterday, week]: readonly [string, string, string]): Group {
  if (updatedAt >= today) return "today";
  if (updatedAt >= yesterday) return "yesterday";
  return updatedAt >= week ? "week" : "older";
}

export interface Heights {
  readonly heading: number;
  readonly item: number;
}

/** Where each row begins, and after the last one, where they all end. */
export function offsetsOf(rows: readonly Row[], heights: Heights): Float64Array {
  const offsets = new Float64Array(rows.length + 1);
  rows.forEach((row, at) => (offsets[at + 1] = (offsets[at] ?? 0) + heights[row.kind]));
  return offsets;
}

export interface Window {
  /** The first row, and the one after the last. */
  readonly from: number;
  readonly to: number;
}

/** The rows that a view of `height` at `top` shows, with some more before and after. */
export function windowOf(offsets: Float64Array, top: number, height: number, more: number): Window {
  const count = offsets.length - 1;
  const from = Math.max(0, rowAt(offsets, top) - more);
  const to = Math.min(count, rowAt(offsets, top + height) + 1 + more);
  return { from, to };
}

/** The last row that begins at or before `y`. */
function rowAt(offsets: Float64Array, y: number): number {
  let low = 0;
  let high = offsets.length - 1;
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if ((offsets[middle] ?? 0) <= y) low = middle;
    else high = middle - 1;
  }
  return low;
}

export interface Stretch {
  readonly group: Group;
  readonly hasHeading: boolean;
  readonly heads: readonly ConversationHead[];
}

/** The rows of a window by group, as they are marked up. */
export function stretchesOf(rows: readonly Row[], { from, to }: Window): Stretch[] {
  const found: { group: Group; hasHeading: boolean; heads: ConversationHead[] }[] = [];
  for (const row of rows.slice(from, to)) {
    let last = found.at(-1);
    if (last?.group !== row.group) found.push((last = { group: row.group, hasHeading: false, heads: [] }));
    if (row.kind === "heading") last.hasHeading = true;
    else last.heads.push(row.head);
  }
  return found;
}

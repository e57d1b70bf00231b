import { describe, expect, it } from "vitest";
import type { ConversationHead } from "../wire/events";
import { offsetsOf, rowsOf, stretchesOf, windowOf, type Row } from "./history";

const NOW = new Date(2026, 10, 29, 14, 20);

function head(id: string, updated: Date, pinned = false): ConversationHead {
  const at = updated.toISOString().replace("Z", "000Z");
  return { id, title: id, created_at: at, updated_at: at, tip_id: null, pinned };
}

const shown = (rows: readonly Row[]): string[] => rows.map((row) => (row.kind === "heading" ? `[${row.group}]` : row.head.id));

describe("rows", () => {
  it("come by local days, the pinned ones first", () => {
    const heads = [
      head("now", NOW),
      head("midnight", new Date(2026, 10, 29)),
      head("late", new Date(2026, 10, 28, 23, 59, 59, 999)),
      head("six", new Date(2026, 10, 22), true),
      head("seven", new Date(2026, 10, 22)),
      head("eight", new Date(2026, 10, 21, 23, 59)),
    ];
    expect(shown(rowsOf(heads, NOW))).toEqual([
      ...["[pinned]", "six", "[today]", "now", "midnight", "[yesterday]", "late", "[week]", "seven", "[older]", "eight"],
    ]);
  });

  it("are none of nothing", () => expect(rowsOf([], NOW)).toEqual([]));

  it("do not lose a day to summer time", () => {
    for (let month = 0; month < 12; month += 1) {
      for (let day = 1; day <= 28; day += 1) {
        const now = new Date(2026, month, day, 12);
        const yesterday = head("y", new Date(2026, month, day - 1));
        expect(shown(rowsOf([yesterday], now))).toEqual(["[yesterday]", "y"]);
      }
    }
  });
});

describe("a window", () => {
  const rows = rowsOf(Array.from({ length: 10_000 }, (_, at) => head(`c${at}`, NOW)), NOW);
  const offsets = offsetsOf(rows, { heading: 30, item: 36 });

  it("knows how long the whole list is", () => expect(offsets.at(-1)).toBe(30 + 10_000 * 36));

  it("has what is to be seen and little more, wherever it is", () => {
    for (const top of [0, 29, 30, 31, 5_000, 180_000, 359_500]) {
      const { from, to } = windowOf(offsets, top, 600, 4);
      expect(offsets[from]).toBeLessThanOrEqual(top);
      expect(offsets[to]).toBeGreaterThanOrEqual(Math.min(top + 600, offsets.at(-1) ?? 0));
      expect(to - from).toBeLessThan(32);
    }
  });

  it("is whole for a short list", () => {
    const few = rows.slice(0, 3);
    expect(windowOf(offsetsOf(few, { heading: 30, item: 36 }), 0, 600, 4)).toEqual({ from: 0, to: 3 });
    expect(windowOf(offsetsOf([], { heading: 30, item: 36 }), 0, 600, 4)).toEqual({ from: 0, to: 0 });
  });

  it("is marked up by group", () => {
    const mixed = rowsOf([head("a", NOW, true), head("b", NOW), head("c", new Date(2020, 1, 1))], NOW);
    expect(stretchesOf(mixed, { from: 1, to: 6 }).map(({ group, hasHeading, heads }) => [group, hasHeading, heads.length])).toEqual([
      ["pinned", false, 1],
      ["today", true, 1],
      ["older", true, 1],
    ]);
  });
});

import { describe, expect, it } from "vitest";
import type { ConversationView } from "../wire/events";
import { Kept } from "./kept";

function setup() {
  const values = new Map<string, string>();
  const kept = new Kept(
    {
      getItem: (name) => values.get(name) ?? null,
      setItem: (name, value) => void values.set(name, value),
      removeItem: (name) => void values.delete(name),
    },
    "p:",
  );
  return { kept, values };
}

const view = (id: string, title = ""): ConversationView => ({ id, title, created_at: "", updated_at: "", tip_id: null, pinned: false, messages: [] });

describe("Kept", () => {
  it("gives back what was put, the newest", () => {
    const { kept } = setup();
    kept.put(view("a", "old"));
    kept.put(view("a", "new"));
    expect(kept.get("a")?.title).toBe("new");
    expect(kept.get("b")).toBeNull();
  });

  it("keeps the twelve that were seen last", () => {
    const { kept, values } = setup();
    for (let at = 0; at < 12; at += 1) kept.put(view(`c${at}`));
    kept.put(view("c0"));
    kept.put(view("c12"));
    expect(kept.get("c0")).not.toBeNull();
    expect(kept.get("c1")).toBeNull();
    expect(values.size).toBe(13);
  });

  it("forgets what was deleted, and what has grown too large", () => {
    const { kept, values } = setup();
    kept.put(view("a"));
    kept.put(view("b"));
    kept.forget("a");
    kept.put(view("b", "x".repeat(500_000)));
    expect([kept.get("a"), kept.get("b")]).toEqual([null, null]);
    expect(values.size).toBe(1);
  });

  it("does not trip over damaged storage", () => {
    const { kept, values } = setup();
    values.set("p:kept", "{");
    values.set("p:kept:a", "{");
    values.set("p:kept-list", "[");
    expect([kept.get("a"), kept.list]).toEqual([null, []]);
    kept.put(view("a"));
    expect(kept.get("a")).not.toBeNull();
  });
});

import { describe, expect, it } from "vitest";
import { Drafts } from "./drafts";
import { Outbox, type KeyValueStore } from "./outbox";

function memory(): KeyValueStore & { values: Map<string, string> } {
  const values = new Map<string, string>();
  return {
    values,
    getItem: (name) => values.get(name) ?? null,
    setItem: (name, value) => void values.set(name, value),
    removeItem: (name) => void values.delete(name),
  };
}

describe("Outbox", () => {
  it("gives a reloaded page what was not confirmed, under the same key", () => {
    const storage = memory();
    const outbox = new Outbox(storage, "outbox");
    outbox.add({ key: "k1", request: { input: "one" }, conversationId: null });
    outbox.add({ key: "k2", request: { regenerate: "m" }, conversationId: "c" });
    outbox.remove("k1");
    expect(new Outbox(storage, "outbox").all()).toEqual([
      { key: "k2", request: { regenerate: "m" }, conversationId: "c" },
    ]);
  });

  it("leaves nothing behind once all is confirmed", () => {
    const storage = memory();
    const outbox = new Outbox(storage, "outbox");
    outbox.add({ key: "k", request: { input: "x" }, conversationId: null });
    outbox.remove("k");
    expect(storage.values.size).toBe(0);
  });

  it.each(["{", "7", '[null, {"key": 1}, {"key": "k"}]'])("drops damaged storage: %s", (stored) => {
    const storage = memory();
    storage.setItem("outbox", stored);
    expect(new Outbox(storage, "outbox").all()).toEqual([]);
  });
});

describe("Drafts", () => {
  it("keeps one draft for each conversation", () => {
    const storage = memory();
    const drafts = new Drafts(storage, "p:");
    drafts.set(null, "new one");
    drafts.set("c", "mine");
    drafts.set(null, "");
    expect(new Drafts(storage, "p:").get("c")).toBe("mine");
    expect([...storage.values.keys()]).toEqual(["p:draft:c"]);
  });
});

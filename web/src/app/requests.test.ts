import { describe, expect, it } from "vitest";
import { Drafts } from "../core/drafts";
import { Outbox, type KeyValueStore } from "../core/outbox";
import type { ClientEvent } from "../wire/events";
import { Conversation } from "./conversation.svelte";
import { Requests } from "./requests";
import { Writing } from "./writing.svelte";

function memory(): KeyValueStore {
  const values = new Map<string, string>();
  return {
    getItem: (name) => values.get(name) ?? null,
    setItem: (name, value) => void values.set(name, value),
    removeItem: (name) => void values.delete(name),
  };
}

function loaded(): Conversation {
  const conversation = new Conversation("c");
  const rest = { status: "completed", created_at: "", responses: [] };
  conversation.merge({
    id: "c",
    title: "t",
    created_at: "",
    updated_at: "",
    tip_id: "a",
    pinned: false,
    messages: [
      { id: "u", parent_id: null, role: "user", text: "hi", ...rest },
      { id: "a", parent_id: "u", role: "assistant", text: "hello", ...rest },
    ],
  });
  return conversation;
}

/** A page's requests; `wire.open` false is a page without a connection. */
function page(storage: KeyValueStore) {
  const wire = { open: true, sent: [] as ClientEvent[] };
  const drafts = new Drafts(memory(), "p:");
  const writing = new Writing(drafts);
  let keys = 0;
  const requests = new Requests(new Outbox(storage, "outbox"), {
    newKey: () => `k${(keys += 1)}`,
    send: (event) => wire.open && wire.sent.push(event) > 0,
    onTakenBack: (request, conversation, id) => void writing.giveBack(request, conversation, id),
  });
  return { wire, drafts, requests };
}

describe("Requests", () => {
  it("sends again on each connection until the server has confirmed, after a reload too", () => {
    const storage = memory();
    const { requests, wire } = page(storage);
    wire.open = false;
    requests.ask(loaded(), { input: "more", conversation_id: "c", parent_id: "a" });
    expect(wire.sent).toEqual([]);
    const reloaded = page(storage);
    const conversation = loaded();
    reloaded.requests.showIn(conversation);
    expect(conversation.path.map(({ text }) => text)).toEqual(["hi", "hello", "more", ""]);
    reloaded.requests.sendAll();
    reloaded.requests.sendAll();
    expect(reloaded.wire.sent.length).toBe(2);
    expect(reloaded.requests.confirmed("k1")).toBe(conversation);
    reloaded.requests.sendAll();
    expect(reloaded.wire.sent.length).toBe(2);
  });

  it("gives a refused edit back to its editor, and a refused message to the draft", () => {
    const { requests, drafts } = page(memory());
    const conversation = loaded();
    requests.ask(conversation, { edit: "u", input: "hi!" });
    drafts.set("c", "meanwhile");
    expect(requests.refused("k1")).toBe(true);
    expect(conversation.path.map(({ id, editor }) => [id, editor])).toEqual([["u", "hi!"], ["a", null]]);
    requests.ask(conversation, { input: "more", parent_id: "a" });
    requests.refused("k2");
    expect(drafts.get("c")).toBe("more\n\nmeanwhile");
    expect(requests.refused("k2")).toBe(false);
  });

  it("keeps the text of a refused edit whose conversation is not shown", () => {
    const storage = memory();
    page(storage).requests.ask(loaded(), { edit: "u", input: "hi!" });
    const { requests, drafts } = page(storage);
    requests.refused("k1");
    expect(drafts.get("c")).toBe("hi!");
  });

  it("takes back only what was never sent", () => {
    const { requests, wire } = page(memory());
    const conversation = loaded();
    wire.open = false;
    requests.ask(conversation, { input: "more", parent_id: "a" });
    expect(requests.takeBackUnsent(conversation, conversation.path[3]!)).toBe(true);
    expect(conversation.path.length).toBe(2);
    wire.open = true;
    requests.ask(conversation, { regenerate: "a" });
    expect(requests.takeBackUnsent(conversation, conversation.path[1]!)).toBe(false);
  });
});

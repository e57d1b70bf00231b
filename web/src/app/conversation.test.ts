import { describe, expect, it } from "vitest";
import type { ConversationView, MessageView, ResponseCreated } from "../wire/events";
import { Conversation } from "./conversation.svelte";

function message(id: string, parentId: string | null, text: string, status = "completed"): MessageView {
  const role = id.startsWith("u") ? "user" : "assistant";
  return { id, parent_id: parentId, role, text, status, created_at: "", responses: [] };
}

function view(tipId: string | null, ...messages: MessageView[]): ConversationView {
  return { id: "c", title: "t", created_at: "", updated_at: "", tip_id: tipId, pinned: false, messages };
}

function created(key: string, userId: string | null, answerId: string): ResponseCreated {
  return {
    type: "response.created",
    response_id: `r-${key}`,
    idempotency_key: key,
    conversation_id: "c",
    user_message_id: userId,
    message_id: answerId,
    dropped_turns: 0,
    miss: "",
  };
}

const texts = (conversation: Conversation): string[] => conversation.path.map((each) => each.text);
const ids = (conversation: Conversation): string[] => conversation.path.map((each) => each.id);

function loaded(): Conversation {
  const conversation = new Conversation("c");
  conversation.merge(view("a1", message("u1", null, "hi"), message("a1", "u1", "hello")));
  return conversation;
}

describe("Conversation", () => {
  it("shows what was sent at once, and gives it the server's ids under the same keys", () => {
    const conversation = loaded();
    conversation.echo({ key: "k", request: { input: "more", parent_id: "a1" }, conversationId: "c" });
    expect(texts(conversation)).toEqual(["hi", "hello", "more", ""]);
    const keys = conversation.path.map((each) => each.key);
    const answer = conversation.confirm(created("k", "u2", "a2"));
    expect(ids(conversation)).toEqual(["u1", "a1", "u2", "a2"]);
    expect(conversation.path.map((each) => each.key)).toEqual(keys);
    expect(answer).toBe(conversation.path.at(-1));
  });

  it("says how many turns the model did not see, live and from history", () => {
    const conversation = loaded();
    conversation.echo({ key: "k", request: { input: "more", parent_id: "a1" }, conversationId: "c" });
    const answer = conversation.confirm({ ...created("k", "u2", "a2"), dropped_turns: 2 });
    expect(answer.droppedTurns).toBe(2);
    answer.retract();
    answer.refresh(message("a2", "u2", "yes"));
    expect(answer.droppedTurns).toBe(0);
  });

  it("is as before when the server refuses", () => {
    const conversation = loaded();
    conversation.echo({ key: "k", request: { edit: "u1", input: "ho" }, conversationId: "c" });
    expect(texts(conversation)).toEqual(["ho", ""]);
    conversation.retract("k");
    expect(ids(conversation)).toEqual(["u1", "a1"]);
    expect(conversation.tree.byId.size).toBe(2);
  });

  it("does not double what the view already holds when a repeated request is confirmed", () => {
    const conversation = loaded();
    const more = [message("u2", "a1", "more"), message("a2", "u2", "", "streaming")];
    conversation.merge(view("a2", message("u1", null, "hi"), message("a1", "u1", "hello"), ...more));
    conversation.echo({ key: "k", request: { input: "more", parent_id: "a1" }, conversationId: "c" });
    conversation.confirm(created("k", "u2", "a2"));
    expect(ids(conversation)).toEqual(["u1", "a1", "u2", "a2"]);
    expect(conversation.tree.byId.size).toBe(4);
  });

  it("keeps an echo while a view is merged, and stays on the branch that is shown", () => {
    const conversation = loaded();
    conversation.echo({ key: "k", request: { regenerate: "a1" }, conversationId: "c" });
    conversation.merge(view("a3", message("u1", null, "hi"), message("a1", "u1", "hello"), message("a3", "u1", "hey")));
    expect(ids(conversation)).toEqual(["u1", "k:answer"]);
    expect(conversation.versionsOf(conversation.path[1]!).length).toBe(3);
  });

  it("goes on down the shown path when another tab has written below it", () => {
    const conversation = loaded();
    const more = [message("u2", "a1", "more"), message("a2", "u2", "yes")];
    conversation.merge(view("a2", message("u1", null, "hi"), message("a1", "u1", "hello"), ...more));
    expect(ids(conversation)).toEqual(["u1", "a1", "u2", "a2"]);
  });

  it("returns to the last choice below a version", () => {
    const conversation = new Conversation("c");
    const branches = [message("u1", null, "1"), message("a1", "u1", "x"), message("a1b", "u1", "y"), message("u2", null, "2")];
    conversation.merge(view("a1b", ...branches));
    conversation.choose(conversation.tree.byId.get("a1")!);
    conversation.choose(conversation.tree.byId.get("u2")!);
    conversation.choose(conversation.tree.byId.get("u1")!);
    expect(ids(conversation)).toEqual(["u1", "a1"]);
  });

  it("shows the chosen branch first, but never leaves what is shown for it", () => {
    const branches = [message("u1", null, "1"), message("a1", "u1", "x"), message("a1b", "u1", "y")];
    const conversation = new Conversation("c");
    conversation.merge(view("a1b", ...branches), "a1");
    expect(ids(conversation)).toEqual(["u1", "a1"]);
    conversation.merge(view("a1b", ...branches), "a1b");
    expect(ids(conversation)).toEqual(["u1", "a1"]);
    const other = new Conversation("c");
    other.merge(view("a1b", ...branches), "gone");
    expect(ids(other)).toEqual(["u1", "a1b"]);
  });

  it("tells an old view from the latest one, and whether anything was confirmed since", () => {
    const conversation = loaded();
    const first = conversation.nextLoad();
    expect(conversation.isLatest(first)).toBe(true);
    conversation.nextLoad();
    expect(conversation.isLatest(first)).toBe(false);
    conversation.echo({ key: "k", request: { input: "more", parent_id: "a1" }, conversationId: "c" });
    expect(conversation.confirmed).toBe(0);
    conversation.confirm(created("k", "u2", "a2"));
    expect(conversation.confirmed).toBe(1);
  });
});

describe("Message", () => {
  it("appends a continued answer to what was there, even if that is learnt later", () => {
    const conversation = new Conversation("c");
    const answer = conversation.confirm(created("k", "u1", "a1"));
    const live = answer.begin("r");
    answer.paint({ ...live, phase: "streaming", seq: 2, text: "and **more**" });
    conversation.merge(view("a1", message("u1", null, "hi"), message("a1", "u1", "Once ", "streaming")));
    answer.paint({ ...live, phase: "streaming", seq: 3, text: "and **more**." });
    expect(answer.text).toBe("Once and **more**.");
    expect(answer.lastBlocks.length).toBe(1);
    expect(answer.parentId).toBe("u1");
  });
});

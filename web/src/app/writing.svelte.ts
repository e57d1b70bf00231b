import type { Drafts } from "../core/drafts";
import type { CreateRequest } from "../wire/events";
import type { Conversation } from "./conversation.svelte";

/** Text that is not sent: each conversation's draft, and what came back from requests that came to nothing. */
export class Writing {
  /** Text for the composer, with a count that changes whenever the composer must take it over. */
  offered = $state.raw({ text: "", turn: 0 });

  constructor(private readonly drafts: Drafts) {}

  draftOf(conversationId: string | null): string {
    return this.drafts.get(conversationId);
  }

  offer(text: string): void {
    this.offered = { text, turn: this.offered.turn + 1 };
  }

  save(conversationId: string | null, text: string): void {
    this.drafts.set(conversationId, text);
  }

  /**
   * An edit's text returns to its editor; any other becomes the draft, which is returned (else null).
   * Nothing written meanwhile is lost.
   */
  giveBack(request: CreateRequest, conversation: Conversation | null, conversationId: string | null): string | null {
    if (!("input" in request)) return null;
    const edited = "edit" in request ? conversation?.tree.byId.get(request.edit) : undefined;
    if (edited) {
      edited.editor = together(request.input, edited.editor ?? "");
      return null;
    }
    const draft = together(request.input, this.drafts.get(conversationId));
    this.drafts.set(conversationId, draft);
    return draft;
  }
}

function together(returned: string, written: string): string {
  return written === "" ? returned : `${returned}\n\n${written}`;
}

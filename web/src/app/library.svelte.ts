import { sentence } from "../text/format";
import { t } from "../text/strings.svelte";
import type { ConversationHead, ConversationPage, ConversationUpdated } from "../wire/events";
import * as http from "../wire/http";
import type { Kept } from "./kept";
import type { Notices } from "./notices.svelte";

const PAGE = 40;

/** The list of conversations, newest first, read page by page. */
export class Library {
  state = $state<"loading" | "ready" | "failed">("loading");
  more = $state(false);
  #heads = $state.raw<readonly ConversationHead[]>([]);
  #hidden = $state.raw<ReadonlySet<string>>(new Set());
  #cursor: string | null = null;
  #updates = 0;
  /** What the title must have in it. */
  filter = $state("");
  items = $derived(this.#heads.filter((head) => !this.#hidden.has(head.id) && hasWords(head.title, this.filter)));

  constructor(
    private readonly notices: Notices,
    private readonly kept: Kept,
    private readonly onDeleted: (id: string) => void,
  ) {}

  titleOf(id: string | null): string {
    return this.#heads.find((head) => head.id === id)?.title ?? "";
  }

  /** Reads the first page again. What was read below it stays until it is read anew. */
  async refresh(): Promise<void> {
    await this.#read(null);
  }

  async loadMore(): Promise<void> {
    if (this.more && this.state !== "loading") await this.#read(this.#cursor);
  }

  update(event: ConversationUpdated): void {
    this.#updates += 1;
    const known = this.#heads.find((head) => head.id === event.conversation_id);
    this.#upsert([
      {
        id: event.conversation_id,
        title: event.title,
        created_at: known?.created_at ?? event.updated_at,
        updated_at: event.updated_at,
        tip_id: event.tip_id,
      },
    ]);
  }

  async rename(id: string, title: string): Promise<void> {
    const before = this.#heads.find((head) => head.id === id);
    if (!before || title === "" || title === before.title) return;
    this.#upsert([{ ...before, title }]);
    try {
      this.#upsert([await http.renameConversation(id, title)]);
    } catch (error) {
      this.#upsert([before]);
      this.#report(error);
    }
  }

  /** Hides the conversation now and deletes it when the chance to undo has passed; `undone` runs if that was taken. */
  remove(id: string, undone: () => void): void {
    this.#hide(id, true);
    const title = this.titleOf(id) || t.untitled;
    const restore = (): void => {
      this.#hide(id, false);
      undone();
    };
    this.notices.undoable(t.deleted(title), t.undo, restore, () => void this.#delete(id));
  }

  /** Deletes a conversation that nobody will miss. Throws ApiError. */
  async forget(id: string): Promise<void> {
    await http.deleteConversation(id, false);
    this.#gone(id);
  }

  #gone(id: string): void {
    this.#heads = this.#heads.filter((head) => head.id !== id);
    this.kept.putList(this.#heads.slice(0, PAGE));
    this.onDeleted(id);
  }

  async #delete(id: string): Promise<void> {
    try {
      await http.deleteConversation(id, true);
      this.#gone(id);
    } catch (error) {
      this.#hide(id, false);
      this.#report(error);
    }
  }

  async #read(before: string | null): Promise<void> {
    if (this.#heads.length === 0) this.state = "loading";
    const updates = this.#updates;
    try {
      const page = await http.listConversations(PAGE, before);
      if (before === null && updates === this.#updates) this.#dropAbove(page);
      this.#upsert(page.conversations);
      if (before !== null || this.#cursor === null) this.#cursor = page.next;
      this.more = this.#cursor !== null;
      this.state = "ready";
      if (before === null) this.kept.putList(page.conversations);
    } catch (error) {
      if (!(error instanceof http.ApiError)) throw error;
      if (this.#heads.length === 0) this.#heads = this.kept.list;
      this.state = this.#heads.length > 0 ? "ready" : "failed";
    }
  }

  /** Forgets what the first page would show and does not: it was deleted elsewhere. */
  #dropAbove(page: ConversationPage): void {
    const oldest = page.next === null ? "" : (page.conversations.at(-1)?.updated_at ?? "");
    this.#heads = this.#heads.filter((head) => head.updated_at < oldest);
  }

  #upsert(heads: readonly ConversationHead[]): void {
    const byId = new Map(this.#heads.map((head) => [head.id, head]));
    for (const head of heads) byId.set(head.id, head);
    this.#heads = [...byId.values()].sort((a, b) => (a.updated_at < b.updated_at ? 1 : a.updated_at > b.updated_at ? -1 : 0));
  }

  #hide(id: string, hidden: boolean): void {
    const next = new Set(this.#hidden);
    if (hidden) next.add(id);
    else next.delete(id);
    this.#hidden = next;
  }

  #report(error: unknown): void {
    if (!(error instanceof http.ApiError)) throw error;
    this.notices.error(error.code === "unreachable" ? t.unreachable : sentence(error.message));
  }
}

/** Whether all words of the filter are in the title, wherever and however they are written. */
function hasWords(title: string, filter: string): boolean {
  const within = title.toLocaleLowerCase();
  return filter.toLocaleLowerCase().split(/\s+/).every((word) => within.includes(word));
}

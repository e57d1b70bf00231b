import { told } from "../text/failures";
import { t } from "../text/strings.svelte";
import type { ConversationHead, ConversationPage, ConversationUpdated } from "../wire/events";
import * as http from "../wire/http";
import type { Kept } from "./kept";
import type { Notices } from "./notices.svelte";

const FIRST_PAGE = 60;
const PAGE = 200;

/** The list of conversations, newest first, read page by page as it is scrolled; the pinned ones at once. */
export class Library {
  state = $state<"loading" | "ready" | "failed">("loading");
  more = $state(false);
  #heads = $state.raw<readonly ConversationHead[]>([]);
  #hidden = $state.raw<ReadonlySet<string>>(new Set());
  #cursor: string | null = null;
  #updates = 0;
  #reading = false;
  items = $derived(this.#heads.filter((head) => !this.#hidden.has(head.id)));

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

  /** Reads the next page, if there is one and none is on its way. */
  async loadMore(): Promise<void> {
    if (!this.more || this.#reading) return;
    this.#reading = true;
    await this.#read(this.#cursor);
    this.#reading = false;
  }

  /** Reads all pages that are left, or as many as can be had. */
  async loadAll(): Promise<void> {
    let read = -1;
    while (this.more && read < this.#heads.length) {
      read = this.#heads.length;
      await this.#read(this.#cursor);
    }
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
        pinned: event.pinned,
      },
    ]);
  }

  async rename(id: string, title: string): Promise<void> {
    if (title === "") return;
    await this.#change(id, { title }, () => http.renameConversation(id, title));
  }

  async pin(id: string, pinned: boolean): Promise<void> {
    await this.#change(id, { pinned }, () => http.pinConversation(id, pinned));
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

  #gone(id: string): void {
    this.#heads = this.#heads.filter((head) => head.id !== id);
    this.kept.putList(this.#heads.slice(0, FIRST_PAGE));
    this.onDeleted(id);
  }

  /** Shows the change at once; it is taken back if the server refuses it. */
  async #change(id: string, parts: Partial<ConversationHead>, ask: () => Promise<ConversationHead>): Promise<void> {
    const before = this.#heads.find((head) => head.id === id);
    if (!before) return;
    const after = { ...before, ...parts };
    if (after.title === before.title && after.pinned === before.pinned) return;
    this.#upsert([after]);
    try {
      this.#upsert([await ask()]);
    } catch (error) {
      this.#upsert([before]);
      this.#report(error);
    }
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
      const isFirst = before === null;
      const [page, pinned] = await Promise.all([
        http.listConversations(isFirst ? FIRST_PAGE : PAGE, before),
        isFirst ? http.listPinned() : null,
      ]);
      if (isFirst && updates === this.#updates) this.#dropAbove(page);
      this.#upsert([...page.conversations, ...(pinned?.conversations ?? [])]);
      if (!isFirst || this.#cursor === null) this.#cursor = page.next;
      this.more = this.#cursor !== null;
      this.state = "ready";
      if (isFirst) this.kept.putList(page.conversations);
    } catch (error) {
      if (!(error instanceof http.ApiError)) throw error;
      if (this.#heads.length === 0) this.#heads = this.kept.list;
      this.state = this.#heads.length > 0 ? "ready" : "failed";
    }
  }

  /** Forgets what the first page would show and does not, as it was deleted elsewhere; and what was pinned. */
  #dropAbove(page: ConversationPage): void {
    const oldest = page.next === null ? "" : (page.conversations.at(-1)?.updated_at ?? "");
    this.#heads = this.#heads.filter((head) => head.updated_at < oldest && !head.pinned);
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
    this.notices.error(told(error));
  }
}

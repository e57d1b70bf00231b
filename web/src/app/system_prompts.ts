/** What the model is told first: given to a new conversation, or changed in one that goes on. */

import { told } from "../text/failures";
import * as http from "../wire/http";
import { routeTo } from "./browser";
import type { Conversation } from "./conversation.svelte";
import type { Library } from "./library.svelte";
import type { Notices } from "./notices.svelte";
import type { Writing } from "./writing.svelte";

export interface SystemPromptHooks {
  current(): Conversation;
  /** The server has it otherwise than it is shown. */
  onChanged(conversation: Conversation): void;
}

export class SystemPrompts {
  constructor(
    private readonly library: Library,
    private readonly writing: Writing,
    private readonly notices: Notices,
    private readonly hooks: SystemPromptHooks,
  ) {}

  /** From the next turn on; a conversation that the server has not made yet is made. */
  async use(system: string): Promise<void> {
    const conversation = this.hooks.current();
    const { id } = conversation;
    if (id === null) return this.beginWith(system);
    await this.#reported(async () => {
      await http.changeSystem(id, system);
      this.hooks.onChanged(conversation);
    });
  }

  /** Begins a conversation; what was written for one that is yet to be made goes along. */
  async beginWith(system: string): Promise<void> {
    const before = this.hooks.current();
    await this.#reported(async () => {
      const { id } = await http.createConversation(system);
      if (before.id === null) {
        this.writing.save(id, this.writing.draftOf(null));
        this.writing.save(null, "");
      }
      location.hash = routeTo(id);
      await this.library.refresh();
    });
  }

  async #reported(action: () => Promise<void>): Promise<void> {
    try {
      await action();
    } catch (error) {
      if (!(error instanceof http.ApiError)) throw error;
      this.notices.error(told(error));
    }
  }
}

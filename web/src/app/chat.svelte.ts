/**
 * The page's one controller: what the user does goes in, wire events come in, models change.
 *
 * Answers belong to the server. A create is kept in the outbox until the server has confirmed it and
 * is sent again on each new connection; every running answer is subscribed to again after the last
 * piece that arrived. So neither a lost connection nor a reload loses or doubles anything.
 */

import { Drafts } from "../core/drafts";
import { Outbox, type PendingCreate } from "../core/outbox";
import { t } from "../text/strings";
import {
  isAnswerEvent,
  type ConversationUpdated,
  type CreateRequest,
  type ErrorEvent,
  type ResponseCreated,
  type ServerEvent,
  type SessionCreated,
} from "../wire/events";
import * as http from "../wire/http";
import { Link, type LinkState } from "../wire/link";
import { Answers, type Live } from "./answers.svelte";
import { randomKey, routedConversation, routeTo, safeStorage } from "./browser";
import { Conversation } from "./conversation.svelte";
import { Health } from "./health.svelte";
import { Library } from "./library.svelte";
import type { Message } from "./message.svelte";
import { Notices } from "./notices.svelte";

const WAKE_PATIENCE_MS = 3000;
const ASK_HEALTH_MS = 15_000;

export class Chat {
  readonly notices = new Notices();
  readonly library = new Library(this.notices);
  readonly health = new Health(() => this.#serverReady());
  readonly answers = new Answers({
    send: (event) => this.#link.send(event),
    onPhase: (live) => this.#announce(live),
    onHole: () => this.#link.restart(),
  });
  session = $state.raw<SessionCreated | null>(null);
  linkState = $state<LinkState>("connecting");
  draining = $state(false);
  current = $state.raw(new Conversation(null));
  /** Text for the composer, with a count that changes whenever the composer must take it over. */
  draft = $state.raw({ text: "", turn: 0 });

  readonly #drafts: Drafts;
  readonly #outbox: Outbox;
  readonly #link: Link;
  readonly #conversations = new Map<string, Conversation>();
  readonly #pendingIn = new Map<string, Conversation>();
  readonly #sentKeys = new Set<string>();

  constructor() {
    const prefix = `chatd:${http.pageUrl(".").pathname}:`;
    this.#drafts = new Drafts(safeStorage(() => localStorage), prefix);
    this.#outbox = new Outbox(safeStorage(() => sessionStorage), `${prefix}outbox`);
    for (const pending of this.#outbox.all()) this.#sentKeys.add(pending.key); // perhaps sent before the reload
    this.#link = new Link(http.socketUrl(), {
      onState: (state) => this.#linkBecame(state),
      onEvent: (event) => this.#handle(event),
    });
  }

  // --- the page's life ------------------------------------------------------------------------

  start(): void {
    this.open(routedConversation());
    this.#link.connect();
    this.health.doubt();
    void this.library.refresh();
    // While an answer is awaited, a stalled engine shows in nothing else.
    setInterval(() => this.answers.busy.size > 0 && this.health.doubt(), ASK_HEALTH_MS);
  }

  /** The page is seen again, or the network came back. */
  wake(): void {
    this.#link.probe(WAKE_PATIENCE_MS);
    void this.library.refresh();
    void this.#load(this.current);
  }

  retryNow(): void {
    this.#link.connect();
  }

  /** The page goes away: what waited for an undo is done now. */
  leave(): void {
    this.notices.dismissAll();
  }

  // --- conversations --------------------------------------------------------------------------

  open(id: string | null): void {
    if (id !== null && id === this.current.id) return;
    this.current = id === null ? this.#unsaved() : this.#conversation(id);
    this.#offerDraft(this.#drafts.get(id));
    void this.#load(this.current);
  }

  remove(id: string): void {
    this.library.remove(id);
    if (this.current.id === id) location.hash = routeTo(null);
  }

  saveDraft(text: string): void {
    this.#drafts.set(this.current.id, text);
  }

  retryLoading(): void {
    void this.#load(this.current);
  }

  // --- answers --------------------------------------------------------------------------------

  send(text: string): void {
    const { id, leafId } = this.current;
    const place = id === null ? {} : { conversation_id: id, ...(leafId === null ? {} : { parent_id: leafId }) };
    this.saveDraft("");
    this.#ask({ input: text, ...place });
  }

  edit(message: Message, text: string): void {
    this.#ask({ edit: message.id, input: text });
  }

  regenerate(message: Message): void {
    this.#ask({ regenerate: message.id });
  }

  continue(message: Message): void {
    this.#ask({ continue: message.id });
  }

  /** Shows the version `offset` places further. */
  switchVersion(message: Message, offset: number): void {
    const versions = this.current.versionsOf(message);
    const at = versions.indexOf(message) + offset;
    const wanted = versions[at];
    if (!wanted) return;
    this.current.choose(wanted);
    this.notices.say(t.announceSwitched(String(at + 1), String(versions.length)));
  }

  /** Stops an answer under way. One that was never sent is taken back instead. */
  stop(message: Message): void {
    if (!message.live || message.stopping) return;
    const unsent = this.#outbox.all().find(({ key }) => this.current.echoed(key) === message);
    if (unsent && !this.#sentKeys.has(unsent.key)) return this.#takeBack(unsent);
    message.stopping = true;
    this.answers.cancelIfStopping(message);
  }

  #ask(request: CreateRequest): void {
    const pending = { key: randomKey(), request, conversationId: this.current.id };
    this.#outbox.add(pending);
    this.#echo(this.current, pending);
    this.#post(pending);
  }

  #echo(conversation: Conversation, pending: PendingCreate): void {
    this.#pendingIn.set(pending.key, conversation);
    conversation.echo(pending);
  }

  #post(pending: PendingCreate): void {
    if (this.session?.model == null) return;
    const sent = this.#link.send({ type: "response.create", idempotency_key: pending.key, ...pending.request });
    if (sent) this.#sentKeys.add(pending.key);
  }

  #takeBack(pending: PendingCreate): void {
    this.#outbox.remove(pending.key);
    const conversation = this.#pendingIn.get(pending.key);
    this.#pendingIn.delete(pending.key);
    conversation?.retract(pending.key);
    if (!("input" in pending.request) || conversation !== this.current) return;
    if (this.#drafts.get(conversation.id) === "") {
      this.saveDraft(pending.request.input);
      this.#offerDraft(pending.request.input);
    }
  }

  // --- wire events ----------------------------------------------------------------------------

  #linkBecame(state: LinkState): void {
    const before = this.linkState;
    this.linkState = state;
    if (before === "lost" && state === "open") this.notices.say(t.connected);
    if (state !== "lost") return;
    if (before === "open") this.notices.say(t.reconnecting);
    this.draining = false;
    this.session = this.session && { ...this.session, model: null };
    this.health.doubt();
  }

  #serverReady(): void {
    if (this.#link.state !== "open") this.#link.connect();
    else if (this.session?.model == null) this.#link.send({ type: "session.hello" });
  }

  #handle(event: ServerEvent): void {
    if (isAnswerEvent(event)) return this.answers.take(event);
    switch (event.type) {
      case "session.created":
        return this.#greeted(event);
      case "response.created":
        return this.#confirmed(event);
      case "conversation.updated":
        return this.#updated(event);
      case "server.draining":
        this.draining = true;
        return;
      case "error":
        return this.#refused(event);
      case "pong":
        return;
    }
  }

  #greeted(event: SessionCreated): void {
    const resumed = this.session !== null;
    this.session = event;
    this.draining = false;
    if (event.model === null) return this.health.doubt();
    this.answers.resume();
    for (const pending of this.#outbox.all()) this.#post(pending);
    if (resumed) {
      void this.library.refresh();
      void this.#load(this.current);
    }
  }

  #confirmed(event: ResponseCreated): void {
    this.#outbox.remove(event.idempotency_key);
    const conversation = this.#pendingIn.get(event.idempotency_key) ?? this.#conversation(event.conversation_id);
    this.#pendingIn.delete(event.idempotency_key);
    const isNew = conversation.id === null;
    const message = conversation.confirm(event);
    if (isNew) this.#named(conversation, event.conversation_id);
    if (!this.answers.has(event.response_id)) this.answers.follow(conversation, message, event.response_id);
    this.answers.cancelIfStopping(message);
  }

  /** The server has made the conversation that was new: it gets its place in the address and the list. */
  #named(conversation: Conversation, id: string): void {
    this.#conversations.set(id, conversation);
    if (conversation === this.current && routedConversation() === null) {
      history.replaceState(null, "", routeTo(id));
    }
    void this.library.refresh();
  }

  /** A conversation changed, here or elsewhere. What was written elsewhere is fetched when it is on show. */
  #updated(event: ConversationUpdated): void {
    this.library.update(event);
    const conversation = this.#conversations.get(event.conversation_id);
    if (!conversation) return;
    conversation.title = event.title;
    const isNews = event.tip_id !== null && !conversation.tree.byId.has(event.tip_id);
    if (isNews && conversation === this.current) void this.#load(conversation);
  }

  #announce({ conversation, answer }: Live): void {
    if (conversation !== this.current) return;
    if (answer.phase === "streaming") this.notices.say(t.announceStarted);
    if (answer.end?.type === "response.cancelled") this.notices.say(t.announceStopped);
    else if (answer.end?.type === "response.failed") this.notices.say(t.announceFailed);
    else if (answer.end) this.notices.say(t.announceEnded);
  }

  #refused(error: ErrorEvent): void {
    if (error.idempotency_key !== undefined) return this.#createRefused(error.idempotency_key, error);
    if (error.code === "not_ready") return this.health.doubt();
    if (error.response_id === undefined || error.code === "conflict") return; // conflict: we hear it already
    const live = this.answers.drop(error.response_id);
    if (live) void this.#load(live.conversation);
  }

  #createRefused(key: string, error: ErrorEvent): void {
    const pending = this.#outbox.all().find((each) => each.key === key);
    if (!pending || error.code === "draining") return; // the next connection sends it again
    if (error.code === "not_ready") return this.health.doubt();
    this.#takeBack(pending);
    this.notices.error(error.message);
  }

  // --- loading --------------------------------------------------------------------------------

  #conversation(id: string): Conversation {
    const known = this.#conversations.get(id);
    if (known) return known;
    const conversation = new Conversation(id);
    this.#conversations.set(id, conversation);
    return conversation;
  }

  /** The conversation yet to be made; with what was asked for in it before a reload. */
  #unsaved(): Conversation {
    const conversation = new Conversation(null);
    for (const pending of this.#outbox.all()) {
      if (pending.conversationId === null && !this.#pendingIn.has(pending.key)) this.#echo(conversation, pending);
    }
    return conversation;
  }

  async #load(conversation: Conversation): Promise<void> {
    if (conversation.id === null) return;
    try {
      await this.#fetch(conversation, conversation.id);
    } catch (error) {
      if (!(error instanceof http.ApiError)) throw error;
      if (error.status === 404) conversation.state = "missing";
      else if (conversation.state === "loading") conversation.state = "failed";
      return;
    }
    for (const message of conversation.tree.byId.values()) this.#pickUp(conversation, message);
    for (const pending of this.#outbox.all()) {
      if (pending.conversationId === conversation.id) this.#echo(conversation, pending);
    }
  }

  /** Merges a view that knows all that was confirmed, unless a newer one has been asked for. */
  async #fetch(conversation: Conversation, id: string): Promise<void> {
    const load = conversation.nextLoad();
    let view, confirmed;
    do {
      confirmed = conversation.confirmed;
      view = await http.getConversation(id);
    } while (confirmed !== conversation.confirmed);
    if (conversation.isLatest(load)) conversation.merge(view);
  }

  /** An answer that is under way at the server and not followed here is followed from its first piece. */
  #pickUp(conversation: Conversation, message: Message): void {
    const responseId = message.openResponse;
    if (responseId === null || message.live || this.answers.has(responseId)) return;
    this.answers.follow(conversation, message, responseId);
    if (this.session?.model != null) this.answers.subscribe(responseId);
  }

  #offerDraft(text: string): void {
    this.draft = { text, turn: this.draft.turn + 1 };
  }
}

/**
 * The page's one controller: what the user does goes in, wire events come in, models change.
 *
 * Answers belong to the server. What was asked for is sent on each new connection until it is
 * confirmed; every running answer is subscribed to again after the last piece that arrived. So
 * neither a lost connection nor a reload loses or doubles anything.
 */

import { Branches } from "../core/branches";
import { Drafts } from "../core/drafts";
import { Outbox } from "../core/outbox";
import { told } from "../text/failures";
import { t } from "../text/strings.svelte";
import { isAnswerEvent, type ConversationUpdated, type CreateRequest, type ErrorEvent, type ResponseCreated } from "../wire/events";
import * as http from "../wire/http";
import { Answers, type Live } from "./answers.svelte";
import { randomKey, routedConversation, routedMessage, routedPlace, routeTo, safeStorage, type Place } from "./browser";
import { Conversation } from "./conversation.svelte";
import { Estimator } from "./estimator.svelte";
import { Kept } from "./kept";
import { Library } from "./library.svelte";
import { Line, type LineHooks } from "./line.svelte";
import { Look } from "./look.svelte";
import type { Message } from "./message.svelte";
import { Notices } from "./notices.svelte";
import { Requests } from "./requests";
import { Settings } from "./settings.svelte";
import { Shelf } from "./shelf";
import { SystemPrompts } from "./system_prompts";
import { Writing } from "./writing.svelte";

const WAKE_PATIENCE_MS = 3000;
const ASK_HEALTH_MS = 15_000;

export class Chat {
  readonly notices = new Notices();
  readonly look: Look;
  readonly settings: Settings;
  readonly library: Library;
  readonly line: Line;
  readonly estimator = new Estimator((event) => this.line.ask(event));
  readonly answers = new Answers({
    send: (event) => this.line.send(event),
    onPhase: (live) => this.#announce(live),
    onHole: () => this.line.restart(),
  });
  current = $state.raw(new Conversation(null));
  /** What is on show: the conversation, or another of the page's places. */
  place = $state<Place>("chat");
  readonly writing: Writing;
  readonly prompts: SystemPrompts;

  readonly #shelf: Shelf;
  readonly #requests: Requests;

  constructor() {
    const prefix = `chatd:${http.pageUrl(".").pathname}:`;
    const lasting = safeStorage(() => localStorage);
    const kept = new Kept(lasting, prefix);
    this.look = new Look(lasting);
    this.settings = new Settings(lasting, prefix);
    this.library = new Library(this.notices, kept, (id) => this.#shelf.drop(id));
    this.writing = new Writing(new Drafts(lasting, prefix));
    this.#shelf = new Shelf(new Branches(lasting, prefix), kept, (conversation) => this.#loaded(conversation));
    this.#requests = new Requests(new Outbox(safeStorage(() => sessionStorage), `${prefix}outbox`), {
      newKey: randomKey,
      send: (event) => this.line.ask(event),
      onTakenBack: (request, conversation, id) => {
        const draft = this.writing.giveBack(request, conversation, id);
        if (draft !== null && conversation === this.current) this.writing.offer(draft);
      },
    });
    this.prompts = new SystemPrompts(this.library, this.writing, this.notices, {
      current: () => this.current,
      onChanged: (conversation) => {
        this.estimator.forget();
        this.#load(conversation);
      },
    });
    this.line = new Line({
      onReady: (again) => this.#ready(again),
      onEvent: (event) => this.#handle(event),
      say: (words) => this.notices.say(words),
    });
  }

  // --- the page's life ------------------------------------------------------------------------

  start(): void {
    void this.look.speak();
    this.follow();
    this.line.connect();
    this.line.health.doubt();
    void this.library.refresh();
    // While an answer is awaited, a stalled engine shows in nothing else.
    setInterval(() => this.answers.busy.size > 0 && this.line.health.doubt(), ASK_HEALTH_MS);
  }

  /** The page is seen again, or the network came back. */
  wake(): void {
    this.line.probe(WAKE_PATIENCE_MS);
    void this.library.refresh();
    this.#load(this.current);
  }

  /** The page is no longer seen, and may never be again. */
  hide(): void {
    this.#shelf.keep(this.current);
  }

  /** The page goes away: what waited for an undo is done now. */
  leave(): void {
    this.hide();
    this.notices.dismissAll();
  }

  // --- conversations --------------------------------------------------------------------------

  /** Goes where the address leads. What was on show stays as it is while another place is. */
  follow(): void {
    this.place = routedPlace();
    if (this.place === "chat") this.open(routedConversation(), routedMessage());
    else if (this.current.state === "new" && this.current.id === null) this.current = this.#unsaved();
  }

  /** With a message, that is looked for in it. */
  open(id: string | null, messageId: string | null = null): void {
    if (id !== null && messageId !== null) this.#shelf.get(id).seek(messageId);
    if (id !== null && id === this.current.id) return;
    this.current = id === null ? this.#unsaved() : this.#shelf.get(id);
    this.estimator.forget();
    this.writing.offer(this.writing.draftOf(id));
    this.#load(this.current);
    this.#warm();
  }

  /** Deletes, unless it is undone: then what was open is open again, if nothing else has been opened since. */
  remove(id: string): void {
    const wasOpen = this.current.id === id;
    this.library.remove(id, () => {
      if (wasOpen && this.current.id === null) location.hash = routeTo(id);
    });
    if (wasOpen) location.hash = routeTo(null);
  }

  saveDraft(text: string): void {
    if (text !== "" && this.writing.draftOf(this.current.id) === "") this.#warm();
    this.writing.save(this.current.id, text);
  }

  retryLoading(): void {
    this.#load(this.current);
  }

  // --- answers --------------------------------------------------------------------------------

  send(text: string): void {
    this.saveDraft("");
    this.estimator.forget();
    this.#ask(this.#input(text));
  }

  /** Asks what would become of `text` if it were sent; "" if nothing is to be sent. */
  weigh(text: string): void {
    if (text.trim() === "" || !this.line.ready || this.current.lastAnswer?.live) return this.estimator.forget();
    this.estimator.ask(this.#withParams(this.#input(text)));
  }

  edit(message: Message, text: string): void {
    this.#ask({ edit: message.id, input: text });
  }

  /** Opens the editor of the last message that was sent. False if there is none, or it is being answered. */
  editLast(): boolean {
    const last = this.current.path.findLast(({ role }) => role === "user");
    if (!last || this.current.lastAnswer?.live) return false;
    last.editor = last.text;
    return true;
  }

  /** Shows another version of the last message that has several. */
  switchLast(offset: number): boolean {
    const message = this.current.path.findLast((each) => this.current.versionsOf(each).length > 1);
    if (message) this.switchVersion(message, offset);
    return message !== undefined;
  }

  regenerate(message: Message): void {
    this.#ask({ regenerate: message.id });
  }

  continue(message: Message): void {
    this.#ask({ continue: message.id });
  }

  /** Shows the version `offset` places further. */
  switchVersion(message: Message, offset: number): void {
    const shown = this.#shelf.switchVersion(this.current, message, offset);
    if (shown) this.notices.say(t.announceSwitched(String(shown[0]), String(shown[1])));
  }

  /** Stops an answer under way. One that was never sent is taken back instead. */
  stop(message: Message): void {
    if (!message.live || message.stopping) return;
    if (this.#requests.takeBackUnsent(this.current, message)) return;
    message.stopping = true;
    this.answers.cancelIfStopping(message);
  }

  #ask(request: CreateRequest): void {
    this.#requests.ask(this.current, this.#withParams(request));
  }

  #input(text: string): CreateRequest {
    const { id, leafId } = this.current;
    if (id === null) return { input: text };
    return { input: text, conversation_id: id, ...(leafId === null ? {} : { parent_id: leafId }) };
  }

  #withParams(request: CreateRequest): CreateRequest {
    const { params } = this.settings;
    return Object.keys(params).length === 0 ? request : { ...request, params };
  }

  // --- wire events ----------------------------------------------------------------------------

  #handle(event: Parameters<LineHooks["onEvent"]>[0]): void {
    if (isAnswerEvent(event)) return this.answers.take(event);
    switch (event.type) {
      case "response.created":
        return this.#confirmed(event);
      case "conversation.updated":
        return this.#updated(event);
      case "cache.estimated":
        return this.estimator.take(event);
      case "error":
        return this.#refused(event);
    }
  }

  #ready(again: boolean): void {
    this.answers.resume();
    this.#requests.sendAll();
    this.#warm();
    if (again || this.current.isKept || this.current.state === "failed") {
      void this.library.refresh();
      this.#load(this.current);
    }
  }

  #confirmed(event: ResponseCreated): void {
    const shownIn = this.#requests.confirmed(event.idempotency_key);
    const conversation = shownIn ?? this.#shelf.get(event.conversation_id);
    const isNew = conversation.id === null;
    const message = conversation.confirm(event);
    if (isNew) this.#named(conversation, event.conversation_id);
    if (!this.answers.has(event.response_id)) this.answers.follow(conversation, message, event.response_id);
    this.answers.cancelIfStopping(message);
  }

  /** The server has made the conversation that was new: it gets its place in the address and the list. */
  #named(conversation: Conversation, id: string): void {
    this.#shelf.put(id, conversation);
    if (conversation === this.current && routedConversation() === null) {
      history.replaceState(null, "", routeTo(id));
    }
    void this.library.refresh();
  }

  /** A conversation changed, here or elsewhere. What was written elsewhere is fetched when it is on show. */
  #updated(event: ConversationUpdated): void {
    this.library.update(event);
    const conversation = this.#shelf.find(event.conversation_id);
    if (!conversation) return;
    conversation.title = event.title;
    conversation.tipId = event.tip_id;
    const isNews = event.tip_id !== null && !conversation.tree.byId.has(event.tip_id);
    if ((isNews || event.system_changed) && conversation === this.current) this.#load(conversation);
  }

  #announce({ conversation, answer }: Live): void {
    if (answer.end) this.#shelf.keep(conversation);
    if (conversation !== this.current) return;
    if (answer.phase === "streaming") this.notices.say(t.announceStarted);
    if (answer.end?.type === "response.cancelled") this.notices.say(t.announceStopped);
    else if (answer.end?.type === "response.failed") this.notices.say(t.announceFailed);
    else if (answer.end) this.notices.say(t.announceEnded);
  }

  #refused(error: ErrorEvent): void {
    if (this.estimator.takeError(error)) return;
    if (error.idempotency_key !== undefined) return this.#createRefused(error.idempotency_key, error);
    if (error.code === "not_ready") return this.line.health.doubt();
    if (error.response_id === undefined || error.code === "conflict") return; // conflict: we hear it already
    const live = this.answers.drop(error.response_id);
    if (live) this.#load(live.conversation);
  }

  #createRefused(key: string, error: ErrorEvent): void {
    if (error.code === "draining") return; // the next connection sends it again
    if (error.code === "not_ready") return this.line.health.doubt();
    if (this.#requests.refused(key)) this.notices.error(told(error));
  }

  /** The conversation yet to be made; with what was asked for in it before a reload. */
  #unsaved(): Conversation {
    const conversation = new Conversation(null);
    this.#requests.showIn(conversation);
    return conversation;
  }

  /** What is on show will probably go on: its first answer need not wait for the disk. */
  #warm(): void {
    const { id } = this.current;
    if (id !== null) this.line.ask({ type: "conversation.warm", conversation_id: id });
  }

  #load(conversation: Conversation): void {
    void this.#shelf.read(conversation);
  }

  #loaded(conversation: Conversation): void {
    for (const message of conversation.tree.byId.values()) this.#pickUp(conversation, message);
    this.#requests.showIn(conversation);
  }

  /** An answer that is under way at the server and not followed here is followed from its first piece. */
  #pickUp(conversation: Conversation, message: Message): void {
    const responseId = message.openResponse;
    if (responseId === null || message.live || this.answers.has(responseId)) return;
    this.answers.follow(conversation, message, responseId);
    if (this.line.ready) this.answers.subscribe(responseId);
  }
}

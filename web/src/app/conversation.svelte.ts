import type { PendingCreate } from "../core/outbox";
import { leafUnder, pathTo, plant, siblingsOf, type Tree } from "../core/tree";
import type { ConversationView, MessageView, ResponseCreated } from "../wire/events";
import { Message } from "./message.svelte";

export type ConversationState = "new" | "loading" | "ready" | "missing" | "failed";

/** The local messages that stand for an answer until the server has given them ids. */
interface Echo {
  user: Message | null;
  answer: Message;
  /** Whether `answer` was made for the echo (a continued answer was there before). */
  fresh: boolean;
  leafBefore: string | null;
}

/** One conversation: its tree, the path that is shown, and what was sent but not yet confirmed. */
export class Conversation {
  id = $state.raw<string | null>(null);
  title = $state("");
  pinned = false;
  state = $state<ConversationState>("new");
  tree = $state.raw<Tree<Message>>(plant([]));
  leafId = $state.raw<string | null>(null);
  /** The newest message at the server, on whichever branch. */
  tipId: string | null = null;
  path = $derived(pathTo(this.tree, this.leafId));
  /** Nothing was said in it yet. */
  isBlank = $derived(this.path.every((message) => message.role === "system"));
  /** A message that shall be looked for: it is shown once it is here. */
  sought = $state.raw<string | null>(null);
  /** It is shown as this browser kept it: the server could not be asked. */
  isKept = $state(false);

  /** How many requests the server has confirmed: a view asked for before the last one may lack it. */
  confirmed = 0;

  #loads = 0;
  #chosen = new Map<string | null, string>();
  #echoes = new Map<string, Echo>();

  constructor(id: string | null) {
    this.id = id;
    this.state = id === null ? "new" : "loading";
  }

  /** The answer at the end of the shown path. */
  get lastAnswer(): Message | null {
    const last = this.path.at(-1);
    return last?.role === "assistant" ? last : null;
  }

  /** What the model is told first on the shown path. */
  get system(): string {
    const [first] = this.path;
    return first?.role === "system" ? first.text : "";
  }

  /** As the server would show it if all that is under way ended now; null for one that it has not made. */
  toView(): ConversationView | null {
    if (this.id === null) return null;
    const echoes = new Set(this.#echoMessages());
    const messages = [...this.tree.byId.values()].filter((message) => !echoes.has(message)).map((message) => message.toView());
    return { id: this.id, title: this.title, created_at: "", updated_at: "", tip_id: this.tipId, pinned: this.pinned, messages };
  }

  /** A view is asked for; only that of the latest asking may be merged. */
  nextLoad(): number {
    this.#loads += 1;
    return this.#loads;
  }

  isLatest(load: number): boolean {
    return load === this.#loads;
  }

  /**
   * Takes the server's view over. Messages that are still an echo, or being written, stay.
   * Shown at first is the branch of `chosen`, without one the newest.
   */
  merge(view: ConversationView, chosen: string | null = null): void {
    const known = this.tree.byId;
    const messages = view.messages.map((each) => this.#merged(known.get(each.id), each));
    this.#replant([...messages, ...this.#echoMessages()]);
    this.tipId = view.tip_id;
    this.leafId = leafUnder(this.tree, this.#known(this.leafId) ?? this.#known(chosen) ?? this.#known(view.tip_id), this.#chosen);
    this.title = view.title;
    this.pinned = view.pinned;
    this.state = "ready";
    this.isKept = false;
    this.#showSought();
  }

  /** Shows the branch with this message, now or once it has been read. */
  seek(messageId: string): void {
    this.sought = messageId;
    this.#showSought();
  }

  #showSought(): void {
    const message = this.sought === null ? undefined : this.tree.byId.get(this.sought);
    if (message && !this.path.includes(message)) this.choose(message);
    else if (!message && this.state === "ready") this.sought = null;
  }

  versionsOf(message: Message): readonly Message[] {
    return siblingsOf(this.tree, message);
  }

  /** Shows this version of a message, and below it what was shown there last. */
  choose(message: Message): void {
    this.#chosen.set(message.parentId, message.id);
    this.leafId = leafUnder(this.tree, message.id, this.#chosen);
  }

  /** Shows at once what was asked for. False if what it refers to is not here. */
  echo(pending: PendingCreate): boolean {
    if (this.#echoes.has(pending.key)) return true;
    const echo = this.#makeEcho(pending);
    if (!echo) return false;
    echo.answer.begin("");
    this.#echoes.set(pending.key, echo);
    this.#replant([...this.tree.byId.values(), ...(echo.user ? [echo.user] : []), ...(echo.fresh ? [echo.answer] : [])]);
    this.leafId = echo.answer.id;
    if (this.state === "new") this.state = "ready";
    return true;
  }

  echoed(key: string): Message | null {
    return this.#echoes.get(key)?.answer ?? null;
  }

  /** The server has taken the request: the echo gets its ids. Returns the message being answered. */
  confirm(created: ResponseCreated): Message {
    const message = this.#placed(created);
    message.droppedTurns = created.dropped_turns;
    return message;
  }

  #placed(created: ResponseCreated): Message {
    const echo = this.#echoes.get(created.idempotency_key);
    this.#echoes.delete(created.idempotency_key);
    this.confirmed += 1;
    this.id = created.conversation_id;
    this.tipId = created.message_id;
    const twin = this.tree.byId.get(created.message_id);
    if (echo && (!twin || twin === echo.answer)) return this.#adopt(echo, created);
    if (echo) this.#drop(echo);
    const message = twin ?? this.#unannounced(created);
    this.leafId = message.id;
    return message;
  }

  /** The server refused: everything is as it was. */
  retract(key: string): void {
    const echo = this.#echoes.get(key);
    if (!echo) return;
    this.#echoes.delete(key);
    echo.answer.retract();
    this.#drop(echo);
    this.leafId = echo.leafBefore;
    if (this.id === null && this.tree.byId.size === 0) this.state = "new";
  }

  #known(id: string | null): string | null {
    return id !== null && this.tree.byId.has(id) ? id : null;
  }

  #merged(message: Message | undefined, view: MessageView): Message {
    if (!message) return Message.fromView(view);
    message.refresh(view);
    return message;
  }

  #replant(messages: Iterable<Message>): void {
    this.tree = plant(messages);
  }

  *#echoMessages(): Iterable<Message> {
    for (const echo of this.#echoes.values()) {
      if (echo.user) yield echo.user;
      if (echo.fresh) yield echo.answer;
    }
  }

  #makeEcho({ key, request }: PendingCreate): Echo | null {
    const leafBefore = this.leafId;
    const find = (id: string): Message | undefined => this.tree.byId.get(id);
    if ("continue" in request) {
      const answer = find(request.continue);
      return answer ? { user: null, answer, fresh: false, leafBefore } : null;
    }
    if ("regenerate" in request) {
      const target = find(request.regenerate);
      return target ? { user: null, answer: localAnswer(key, target.parentId), fresh: true, leafBefore } : null;
    }
    const edited = "edit" in request ? find(request.edit) : undefined;
    if ("edit" in request && !edited) return null;
    const parentId = "edit" in request ? (edited?.parentId ?? null) : (request.parent_id ?? null);
    const user = Message.fromView({
      id: `${key}:user`,
      parent_id: parentId,
      role: "user",
      text: request.input,
      status: "",
      created_at: "",
      responses: [],
    });
    return { user, answer: localAnswer(key, user.id), fresh: true, leafBefore };
  }

  #adopt(echo: Echo, created: ResponseCreated): Message {
    if (echo.user && created.user_message_id !== null) {
      echo.user.id = created.user_message_id;
      echo.answer.parentId = created.user_message_id;
    }
    echo.answer.id = created.message_id;
    this.#replant(this.tree.byId.values());
    for (const message of [echo.user, echo.answer]) if (message) this.#chosen.set(message.parentId, message.id);
    this.leafId = echo.answer.id;
    return echo.answer;
  }

  #drop(echo: Echo): void {
    const gone = new Set([echo.user, echo.fresh ? echo.answer : null]);
    this.#replant([...this.tree.byId.values()].filter((message) => !gone.has(message)));
  }

  /** An answer whose echo could not be shown; the next merge brings what is around it. */
  #unannounced(created: ResponseCreated): Message {
    const message = new Message(created.message_id, created.user_message_id, "assistant");
    this.#replant([...this.tree.byId.values(), message]);
    return message;
  }
}

function localAnswer(key: string, parentId: string | null): Message {
  return new Message(`${key}:answer`, parentId, "assistant");
}

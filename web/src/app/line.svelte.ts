import { t } from "../text/strings.svelte";
import type { ClientEvent, ServerEvent, SessionCreated } from "../wire/events";
import * as http from "../wire/http";
import { Link, type LinkState } from "../wire/link";
import { Health } from "./health.svelte";

/** An attempt that has not come through by then, though the server answers, is stuck. */
const STUCK_MS = 3000;

export interface LineHooks {
  /** The server greeted and has its model. `again`: it had greeted this page before. */
  onReady(again: boolean): void;
  /** Any event that is not about the line itself. */
  onEvent(event: Exclude<ServerEvent, { type: "session.created" | "server.draining" | "pong" }>): void;
  /** For whoever listens instead of looking. */
  say(words: string): void;
}

/** The line to the server: the socket, what the server said of itself, and whether it can answer. */
export class Line {
  session = $state.raw<SessionCreated | null>(null);
  state = $state<LinkState>("connecting");
  draining = $state(false);
  readonly health = new Health(() => this.#serverReady());
  readonly #link: Link;

  constructor(private readonly hooks: LineHooks) {
    this.#link = new Link(http.socketUrl(), {
      onState: (state) => this.#became(state),
      onEvent: (event) => this.#handle(event),
    });
  }

  /** Whether the server has its model: before that it answers no question. */
  get ready(): boolean {
    return this.session?.model != null;
  }

  connect(): void {
    this.#link.connect();
  }

  /** Asks for a sign of life, with little patience. */
  probe(patienceMs: number): void {
    this.#link.probe(patienceMs);
  }

  /** What came over this connection does not fit together: takes a new one. */
  restart(): void {
    this.#link.restart();
  }

  /** False if it could not be sent now. */
  send(event: ClientEvent): boolean {
    return this.#link.send(event);
  }

  /** As `send`, for what only a server with its model can do. */
  ask(event: ClientEvent): boolean {
    return this.ready && this.send(event);
  }

  #became(state: LinkState): void {
    const before = this.state;
    this.state = state;
    if (before === "lost" && state === "open") this.hooks.say(t.connected);
    if (state !== "lost") return;
    if (before === "open") this.hooks.say(t.reconnecting);
    this.draining = false;
    this.session = this.session && { ...this.session, model: null };
    void http.checkSession();
    this.health.doubt();
  }

  #serverReady(): void {
    if (this.#link.state !== "open") this.#link.renew(STUCK_MS);
    else if (!this.ready) this.#link.send({ type: "session.hello" });
  }

  #handle(event: ServerEvent): void {
    if (event.type === "session.created") this.#greeted(event);
    else if (event.type === "server.draining") this.draining = true;
    else if (event.type !== "pong") this.hooks.onEvent(event);
  }

  #greeted(event: SessionCreated): void {
    const again = this.session !== null;
    this.session = event;
    this.draining = false;
    if (event.model === null) this.health.doubt();
    else this.hooks.onReady(again);
  }
}

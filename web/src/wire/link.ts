/**
 * One WebSocket to the server that is always being kept up.
 *
 * `open` is said once the server has greeted. A socket over which nothing came for a whole heartbeat
 * after a ping is given up: a sleeping laptop or a dead proxy closes nothing by itself. Frames
 * sent while not open are refused, not kept: what must survive is in the outbox.
 */

import { retryDelay } from "../core/backoff";
import { parseEvent, type ClientEvent, type ServerEvent } from "./events";

export type LinkState = "connecting" | "open" | "lost";

export interface LinkHandlers {
  onState(state: LinkState): void;
  onEvent(event: ServerEvent): void;
}

const PROTOCOL = "chatd.v1";
/** From the attempt to the greeting. Browsers themselves hold attempts back for up to 5 s after many that failed. */
const GREETING_MS = 8000;
/** An attempt as old as this may have begun on a network that is gone. */
const FRESH_MS = 1000;

export class Link {
  #socket: WebSocket | null = null;
  #state: LinkState = "connecting";
  #attempt = 0;
  #begunAt = 0;
  #heartbeatMs = 0;
  #retry: ReturnType<typeof setTimeout> | undefined;
  #watch: ReturnType<typeof setTimeout> | undefined;

  constructor(
    private readonly url: string,
    private readonly handlers: LinkHandlers,
    private readonly random: () => number = Math.random,
  ) {}

  get state(): LinkState {
    return this.#state;
  }

  /** Connects now: at the start, when the network comes back, when the user asks. No effect on a living socket. */
  connect(): void {
    if (this.#socket) return;
    clearTimeout(this.#retry);
    this.#begunAt = Date.now();
    const socket = new WebSocket(this.url, PROTOCOL);
    this.#socket = socket;
    socket.onopen = () => socket.send(JSON.stringify({ type: "session.hello" } satisfies ClientEvent));
    socket.onmessage = (message) => this.#receive(message.data);
    socket.onclose = () => this.#lose(socket);
    this.#watch = setTimeout(() => this.#lose(socket), GREETING_MS);
  }

  send(event: ClientEvent): boolean {
    if (this.#state !== "open" || !this.#socket) return false;
    this.#socket.send(JSON.stringify(event));
    return true;
  }

  /**
   * Asks for a sign of life now, with a short patience: for the moment a sleeping page wakes up, or the network
   * comes back. An attempt that began before that gives way to a new one.
   */
  probe(patienceMs: number): void {
    const socket = this.#socket;
    if (!socket || this.#state !== "open") return this.renew(FRESH_MS);
    if (this.send({ type: "ping" })) {
      clearTimeout(this.#watch);
      this.#watch = setTimeout(() => this.#lose(socket), patienceMs);
    }
  }

  /** Connects, also where an attempt is under way that is older than this. No effect on an open socket. */
  renew(olderThanMs: number): void {
    if (!this.#socket) this.connect();
    else if (this.#state !== "open" && Date.now() - this.#begunAt >= olderThanMs) this.restart();
  }

  /** Gives this socket up and takes a new one: what came over it does not fit together. */
  restart(): void {
    if (this.#socket) this.#lose(this.#socket);
    this.connect();
  }

  #receive(frame: unknown): void {
    const event = parseEvent(frame);
    if (!event) return;
    if (event.type === "session.created") {
      this.#attempt = 0;
      this.#heartbeatMs = event.heartbeat_s * 1000;
    }
    if (this.#heartbeatMs > 0) this.#watchHeartbeat();
    if (event.type === "session.created") this.#become("open");
    this.handlers.onEvent(event);
  }

  /** Every frame is a sign of life: the next ping is due a heartbeat later, and the end another one after that. */
  #watchHeartbeat(): void {
    const socket = this.#socket;
    clearTimeout(this.#watch);
    if (!socket) return;
    this.#watch = setTimeout(() => {
      this.send({ type: "ping" });
      this.#watch = setTimeout(() => this.#lose(socket), this.#heartbeatMs);
    }, this.#heartbeatMs);
  }

  #lose(socket: WebSocket): void {
    if (socket !== this.#socket) return;
    clearTimeout(this.#watch);
    this.#socket = null;
    socket.onclose = socket.onmessage = socket.onopen = null;
    socket.close();
    this.#retry = setTimeout(() => this.connect(), retryDelay(this.#attempt, this.random()));
    this.#attempt += 1;
    this.#become("lost"); // last: whoever hears of it may connect at once, and must not hinder the retry
  }

  #become(state: LinkState): void {
    this.#state = state;
    this.handlers.onState(state);
  }
}

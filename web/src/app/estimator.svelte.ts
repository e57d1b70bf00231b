/**
 * What would become of the message that is being written, asked of the server while it is written.
 *
 * Only the answer to the newest question counts. What is shown stays until a newer answer comes, so that
 * nothing flickers while one types; it goes at once when the question does.
 */

import type { CacheEstimated, ClientEvent, CreateRequest, ErrorEvent } from "../wire/events";

const QUIET_MS = 350;

export class Estimator {
  found = $state.raw<CacheEstimated | null>(null);
  /** It does not fit the context. */
  refused = $state(false);

  #asked = 0;
  #timer: ReturnType<typeof setTimeout> | undefined;

  constructor(
    /** False if it could not be sent now. */
    private readonly send: (event: ClientEvent) => boolean,
  ) {}

  /** Asks once nothing changed for a moment. */
  ask(request: CreateRequest): void {
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => {
      this.#asked += 1;
      this.send({ type: "cache.estimate", idempotency_key: this.#key, ...request });
    }, QUIET_MS);
  }

  /** There is nothing to ask about (any more). */
  forget(): void {
    clearTimeout(this.#timer);
    this.#asked += 1;
    this.found = null;
    this.refused = false;
  }

  take(event: CacheEstimated): void {
    if (event.idempotency_key !== this.#key) return;
    this.found = event;
    this.refused = false;
  }

  /** False if the error is not about an estimate. */
  takeError(error: ErrorEvent): boolean {
    if (!error.idempotency_key?.startsWith("estimate:")) return false;
    if (error.idempotency_key === this.#key) {
      this.found = null;
      this.refused = error.code === "context_length_exceeded" || error.code === "exceeds_kv_pool";
    }
    return true;
  }

  get #key(): string {
    return `estimate:${this.#asked}`;
  }
}

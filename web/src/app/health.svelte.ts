import type { Readiness } from "../wire/events";
import * as http from "../wire/http";

const ASK_AGAIN_MS = 1000;

/** Asks /readyz again and again until the server is ready; `onReady` runs each time it becomes so. */
export class Health {
  /** The last answer; null when nobody answered. */
  readiness = $state.raw<Readiness | null>(null);
  #asking = false;

  constructor(private readonly onReady: () => void) {}

  get ready(): boolean {
    return this.readiness?.status === "ready";
  }

  /** Something made us doubt. */
  doubt(): void {
    if (this.#asking) return;
    this.#asking = true;
    void this.#askUntilReady();
  }

  async #askUntilReady(): Promise<void> {
    for (;;) {
      this.readiness = await ask();
      if (this.ready) break;
      await new Promise((resolve) => setTimeout(resolve, ASK_AGAIN_MS));
    }
    this.#asking = false;
    this.onReady();
  }
}

async function ask(): Promise<Readiness | null> {
  try {
    return await http.getReadiness();
  } catch (error) {
    if (error instanceof http.ApiError) return null;
    throw error;
  }
}

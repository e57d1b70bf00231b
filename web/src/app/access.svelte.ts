/**
 * Whether this browser may talk to the server. Where there are no keys everybody may; else a cookie says so,
 * which a key buys, or the one-time address that `chatd keys login` prints (`#login=TOKEN`).
 */

import * as http from "../wire/http";
import type { SessionView } from "../wire/http";

const ADDRESS = /^#login=([\w-]+)$/;

export class Access {
  /** "unknown" until the server was asked; "open" also if it cannot be reached: the page works offline. */
  state = $state<"unknown" | "open" | "closed">("unknown");
  session = $state.raw<SessionView | null>(null);
  /** The login address was used before, or is too old. */
  stale = $state(false);

  async enter(): Promise<void> {
    const token = ADDRESS.exec(location.hash)?.[1];
    if (token !== undefined) {
      history.replaceState(null, "", location.pathname + location.search); // it is a secret, and good once
      this.stale = !(await this.#try(() => http.logIn({ token })));
    }
    await this.#try(http.getSession);
  }

  /** False: the server does not know the key. */
  async logIn(key: string): Promise<boolean> {
    return this.#try(() => http.logIn({ key: key.trim() }));
  }

  /** Leaves nothing of the account in this tab. */
  async logOut(): Promise<void> {
    await http.logOut();
    location.reload();
  }

  async #try(ask: () => Promise<SessionView>): Promise<boolean> {
    try {
      this.session = await ask();
      this.state = "open";
      return true;
    } catch (error) {
      if (!(error instanceof http.ApiError)) throw error;
      this.state = error.status === 401 ? "closed" : "open";
      return false;
    }
  }
}

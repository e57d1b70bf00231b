/** Short messages over the page, each with at most one action; and the one polite line for screen readers. */

export interface Notice {
  readonly id: number;
  readonly text: string;
  readonly tone: "plain" | "error";
  readonly action: { label: string; run: () => void } | null;
}

interface Shown {
  notice: Notice;
  timer: ReturnType<typeof setTimeout>;
  expired: () => void;
}

const PLAIN_MS = 6000;
const ERROR_MS = 12_000;

export class Notices {
  list = $state.raw<readonly Notice[]>([]);
  /** What the status region says now. */
  spoken = $state("");

  #shown = new Map<number, Shown>();
  #nextId = 1;

  say(text: string): void {
    this.spoken = text;
  }

  error(text: string, action: Notice["action"] = null): void {
    this.#show({ text, tone: "error", action }, ERROR_MS, () => {});
  }

  /** `done` runs when the notice goes away without `undo` having been chosen. */
  undoable(text: string, label: string, undo: () => void, done: () => void): void {
    this.#show({ text, tone: "plain", action: { label, run: undo } }, PLAIN_MS, done);
  }

  act(notice: Notice): void {
    this.#take(notice.id);
    notice.action?.run();
  }

  dismiss(id: number): void {
    this.#take(id)?.expired();
  }

  /** Ends all notices now, as when the page goes away. */
  dismissAll(): void {
    for (const id of [...this.#shown.keys()]) this.dismiss(id);
  }

  #show(parts: Omit<Notice, "id">, ms: number, expired: () => void): void {
    const notice = { ...parts, id: this.#nextId };
    this.#nextId += 1;
    const timer = setTimeout(() => this.dismiss(notice.id), ms);
    this.#shown.set(notice.id, { notice, timer, expired });
    this.#publish();
    this.say(notice.text);
  }

  #take(id: number): Shown | undefined {
    const shown = this.#shown.get(id);
    if (shown) clearTimeout(shown.timer);
    this.#shown.delete(id);
    this.#publish();
    return shown;
  }

  #publish(): void {
    this.list = [...this.#shown.values()].map((shown) => shown.notice);
  }
}

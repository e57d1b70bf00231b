/**
 * Collects what changed and paints it at most once per animation frame.
 *
 * An urgent change (the first piece of an answer, its end) is painted at once, together with all
 * that waited.
 */
export class Painter<T> {
  #dirty = new Set<T>();
  #scheduled = false;

  constructor(
    private readonly nextFrame: (callback: () => void) => void,
    private readonly paint: (dirty: ReadonlySet<T>) => void,
  ) {}

  touch(item: T, urgent: boolean): void {
    this.#dirty.add(item);
    if (urgent) this.#flush();
    else if (!this.#scheduled) {
      this.#scheduled = true;
      this.nextFrame(() => {
        this.#scheduled = false;
        this.#flush();
      });
    }
  }

  #flush(): void {
    if (this.#dirty.size === 0) return;
    const dirty = this.#dirty;
    this.#dirty = new Set();
    this.paint(dirty);
  }
}

/** The next animation frame; in a hidden page, which has none, a slow timer. */
export function browserFrame(callback: () => void): void {
  if (document.hidden) setTimeout(callback, 250);
  else requestAnimationFrame(callback);
}

import type { Attachment } from "svelte/attachments";

const NEAR_PX = 48;
/** So long after the wheel, a finger or a key, what scrolls is the reader's doing. */
const BY_HAND_MS = 2000;
const BY_HAND = ["wheel", "touchmove", "pointerdown", "keydown"] as const;

/**
 * Keeps a scroller at its end while text grows, for as long as the reader stays there.
 *
 * Scrolling up lets go; coming back to the end takes hold again. Text that becomes shorter, as a formula does that is
 * set, scrolls up too: that is nobody's wish.
 */
export class Follower {
  following = $state(true);
  #scroller: HTMLElement | null = null;
  #lastTop = 0;
  #lastHeight = 0;
  #byHandAt = -Infinity;

  /** For the scrolling element; its first child is what grows. */
  readonly attach: Attachment<HTMLElement> = (scroller) => {
    this.#scroller = scroller;
    const onscroll = (): void => this.#scrolled(scroller);
    const observer = new ResizeObserver(() => {
      if (this.following) this.#toEnd(scroller);
    });
    observer.observe(scroller);
    if (scroller.firstElementChild) observer.observe(scroller.firstElementChild);
    const byHand = (): void => void (this.#byHandAt = performance.now());
    scroller.addEventListener("scroll", onscroll, { passive: true });
    for (const name of BY_HAND) scroller.addEventListener(name, byHand, { passive: true });
    return () => {
      observer.disconnect();
      scroller.removeEventListener("scroll", onscroll);
      for (const name of BY_HAND) scroller.removeEventListener(name, byHand);
      this.#scroller = null;
    };
  };

  jump(): void {
    this.following = true;
    if (this.#scroller) this.#toEnd(this.#scroller);
  }

  /** Stays where it is, as if the reader had scrolled up. */
  letGo(): void {
    this.following = false;
  }

  #toEnd(scroller: HTMLElement): void {
    scroller.scrollTop = scroller.scrollHeight;
    this.#remember(scroller);
  }

  #scrolled(scroller: HTMLElement): void {
    const { scrollTop, scrollHeight, clientHeight } = scroller;
    if (scrollHeight - scrollTop - clientHeight < NEAR_PX) this.following = true;
    else if (scrollTop < this.#lastTop && this.#isByHand(scrollHeight)) {
      this.following = false;
      this.#byHandAt = performance.now(); // and so is what a flick goes on to scroll
    }
    this.#remember(scroller);
  }

  /** Where nothing changed its height, it is: by the bar, or a search in the page. */
  #isByHand(height: number): boolean {
    return height === this.#lastHeight || performance.now() - this.#byHandAt < BY_HAND_MS;
  }

  #remember({ scrollTop, scrollHeight }: HTMLElement): void {
    this.#lastTop = scrollTop;
    this.#lastHeight = scrollHeight;
  }
}

import type { Attachment } from "svelte/attachments";

const NEAR_PX = 48;

/**
 * Keeps a scroller at its end while text grows, for as long as the reader stays there.
 *
 * Scrolling up lets go; coming back to the end takes hold again.
 */
export class Follower {
  following = $state(true);
  #scroller: HTMLElement | null = null;
  #lastTop = 0;

  /** For the scrolling element; its first child is what grows. */
  readonly attach: Attachment<HTMLElement> = (scroller) => {
    this.#scroller = scroller;
    const onscroll = (): void => this.#scrolled(scroller);
    const observer = new ResizeObserver(() => {
      if (this.following) this.#toEnd(scroller);
    });
    observer.observe(scroller);
    if (scroller.firstElementChild) observer.observe(scroller.firstElementChild);
    scroller.addEventListener("scroll", onscroll, { passive: true });
    return () => {
      observer.disconnect();
      scroller.removeEventListener("scroll", onscroll);
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
  }

  #scrolled(scroller: HTMLElement): void {
    const { scrollTop, scrollHeight, clientHeight } = scroller;
    if (scrollHeight - scrollTop - clientHeight < NEAR_PX) this.following = true;
    else if (scrollTop < this.#lastTop) this.following = false;
    this.#lastTop = scrollTop;
  }
}

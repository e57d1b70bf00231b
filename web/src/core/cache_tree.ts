/** The cache's stretches of KV as a tree to look at: what conversations share, and where they part. Pure. */

import type { CacheTree, CachedConversation } from "../wire/pages";

export interface Stretch {
  readonly index: number;
  readonly start: number;
  readonly tokens: number;
  readonly pages: number;
  readonly stored: number;
  readonly inUse: boolean;
  readonly head: string;
  /** The conversations that go through it. */
  readonly through: readonly CachedConversation[];
  /** Those of them whose last stretch it is. */
  readonly ending: readonly CachedConversation[];
  readonly below: readonly Stretch[];
}

/** The roots. A stretch that goes on in one other alone, with the same conversations, is one with it. */
export function treeOf({ stretches, conversations }: CacheTree): Stretch[] {
  const children = new Map<number, number[]>();
  stretches.forEach(({ parent }, index) => children.set(parent, [...(children.get(parent) ?? []), index]));
  const through = new Map<number, CachedConversation[]>();
  for (const one of conversations) for (const index of one.stretches) through.set(index, [...(through.get(index) ?? []), one]);

  function make(index: number): Stretch {
    const own = stretches[index];
    if (!own) throw new RangeError(`no stretch ${index}`);
    const here = through.get(index) ?? [];
    const below = (children.get(index) ?? []).map(make);
    const ending = here.filter((one) => one.stretches.at(-1) === index);
    const made = { index, start: own.start, tokens: own.tokens, pages: own.pages, stored: own.stored, inUse: own.locks > 0, head: whole(own.head) };
    const [only] = below;
    if (below.length === 1 && only && ending.length === 0 && only.through.length === here.length) {
      return {
        ...made,
        tokens: own.tokens + only.tokens,
        pages: own.pages + only.pages,
        stored: own.stored + only.stored,
        inUse: made.inUse || only.inUse,
        through: here,
        ending: only.ending,
        below: only.below,
      };
    }
    return { ...made, through: here, ending, below: bySize(below) };
  }

  return bySize((children.get(-1) ?? []).map(make));
}

/** What many go through first, then what is longest. */
function bySize(stretches: Stretch[]): Stretch[] {
  return stretches.sort((a, b) => b.through.length - a.through.length || lengthOf(b) - lengthOf(a));
}

/** With all that hangs under it. */
export function lengthOf(stretch: Stretch): number {
  return stretch.tokens + stretch.below.reduce((sum, each) => sum + lengthOf(each), 0);
}

/** Of a conversation's tokens, those in stretches that others go through too. */
export function sharedLen(conversation: CachedConversation, { stretches, conversations }: CacheTree): number {
  const others = new Set(conversations.filter((one) => one.id !== conversation.id).flatMap((one) => one.stretches));
  const shared = conversation.stretches.filter((index) => others.has(index));
  return Math.min(conversation.in_memory, shared.reduce((sum, index) => sum + (stretches[index]?.tokens ?? 0), 0));
}

/** Without what is left of characters that a stretch is cut in. */
const whole = (text: string): string => text.replace(/^\ufffd+|\ufffd+$/g, "");

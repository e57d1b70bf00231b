import { expect, it } from "vitest";
import type { CachedConversation, CacheStretch, CacheTree } from "../wire/pages";
import { lengthOf, sharedLen, treeOf, type Stretch } from "./cache_tree";

const stretch = (parent: number, start: number, tokens: number): CacheStretch => ({
  ...{ parent, start, tokens, pages: Math.ceil(tokens / 16), locks: 0, stored: 0, head: `at ${start}` },
});
const talk = (id: string, ...stretches: number[]): CachedConversation => ({ id, title: id, tokens: 200, in_memory: 150, on_disk: 0, stretches });

/** A prompt that two share, of which one goes on in two steps; and one by itself. */
const TREE: CacheTree = {
  stretches: [stretch(-1, 0, 64), stretch(0, 64, 32), stretch(1, 96, 16), stretch(0, 64, 48), stretch(-1, 0, 20)],
  conversations: [talk("a", 0, 1, 2), talk("b", 0, 3), talk("c", 4)],
};

const drawn = (each: Stretch): unknown => [each.tokens, each.through.map(({ id }) => id), each.ending.map(({ id }) => id), each.below.map(drawn)];

it("shows what is shared before where it parts", () => {
  expect(treeOf(TREE).map(drawn)).toEqual([
    [64, ["a", "b"], [], [[48, ["a"], ["a"], []], [48, ["b"], ["b"], []]]],
    [20, ["c"], ["c"], []],
  ]);
});

it("keeps a stretch apart where a conversation ends", () => {
  const ends = { ...TREE, conversations: [talk("a", 0, 1, 2), talk("early", 0, 1)] };
  const [root] = treeOf(ends);
  expect(root && drawn(root)).toEqual([
    ...[64, ["a", "early"], []],
    [
      [32, ["a", "early"], ["early"], [[16, ["a"], ["a"], []]]],
      [48, [], [], []],
    ],
  ]);
});

it("adds up", () => {
  const [root] = treeOf(TREE);
  expect(root && lengthOf(root)).toBe(64 + 48 + 48);
  expect(TREE.conversations.map((one) => sharedLen(one, TREE))).toEqual([64, 64, 0]);
  expect(treeOf({ stretches: [], conversations: [] })).toEqual([]);
});

it("shows no half of a character", () => {
  const stretches = [{ ...stretch(-1, 0, 16), head: "\ufffd\ufffd是谁\ufffd" }];
  expect(treeOf({ stretches, conversations: [talk("a", 0)] }).map(({ head }) => head)).toEqual(["是谁"]);
});

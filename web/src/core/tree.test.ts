import { describe, expect, it } from "vitest";
import { leafUnder, pathTo, plant, siblingsOf, type Node } from "./tree";

const NODES: Node[] = [
  { id: "u1", parentId: null },
  { id: "a1", parentId: "u1" },
  { id: "a1b", parentId: "u1" },
  { id: "u2", parentId: "a1" },
  { id: "a2", parentId: "u2" },
  { id: "u1b", parentId: null },
];
const tree = plant(NODES);
const ids = (nodes: readonly Node[]): string[] => nodes.map((node) => node.id);

describe("tree", () => {
  it("gives the path to a message, root first", () => {
    expect(ids(pathTo(tree, "a2"))).toEqual(["u1", "a1", "u2", "a2"]);
    expect(pathTo(tree, "unknown")).toEqual([]);
    expect(pathTo(tree, null)).toEqual([]);
  });

  it("gives the versions of a message in the order they were made", () => {
    expect(ids(siblingsOf(tree, NODES[1] as Node))).toEqual(["a1", "a1b"]);
    expect(ids(siblingsOf(tree, NODES[5] as Node))).toEqual(["u1", "u1b"]);
  });

  it("walks down by the last choice, else by the newest", () => {
    expect(leafUnder(tree, "u1", new Map())).toBe("a1b");
    expect(leafUnder(tree, "u1", new Map([["u1", "a1"]]))).toBe("a2");
    expect(leafUnder(tree, null, new Map())).toBe("u1b");
    expect(leafUnder(tree, null, new Map([[null, "u1"], ["u1", "gone"]]))).toBe("a1b");
    expect(leafUnder(plant([]), null, new Map())).toBeNull();
  });

  it("treats a message whose parent is not there as a root", () => {
    const orphan = plant([...NODES, { id: "x", parentId: "lost" }]);
    expect(ids(pathTo(orphan, "x"))).toEqual(["x"]);
    expect(ids(siblingsOf(orphan, { id: "x", parentId: "lost" }))).toEqual(["u1", "u1b", "x"]);
  });
});

import { describe, expect, it } from "vitest";
import { Painter } from "./painter";

function setup() {
  const frames: (() => void)[] = [];
  const paints: string[][] = [];
  const painter = new Painter<string>(
    (callback) => frames.push(callback),
    (dirty) => paints.push([...dirty]),
  );
  return { painter, paints, runFrame: () => frames.splice(0).forEach((frame) => frame()) };
}

describe("Painter", () => {
  it("paints many changes once in a frame", () => {
    const { painter, paints, runFrame } = setup();
    for (let index = 0; index < 100; index += 1) painter.touch(index % 2 ? "a" : "b", false);
    expect(paints).toEqual([]);
    runFrame();
    expect(paints).toEqual([["b", "a"]]);
    runFrame();
    expect(paints.length).toBe(1);
  });

  it("paints an urgent change at once, with what waited, and nothing twice", () => {
    const { painter, paints, runFrame } = setup();
    painter.touch("a", false);
    painter.touch("b", true);
    expect(paints).toEqual([["a", "b"]]);
    runFrame();
    expect(paints.length).toBe(1);
  });
});

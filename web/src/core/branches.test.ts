import { describe, expect, it } from "vitest";
import { Branches } from "./branches";

function memory() {
  const values = new Map<string, string>();
  const branches = new Branches(
    {
      getItem: (name) => values.get(name) ?? null,
      setItem: (name, value) => void values.set(name, value),
      removeItem: (name) => void values.delete(name),
    },
    "p:",
  );
  return { values, branches };
}

describe("Branches", () => {
  it("remembers a choice for as long as the conversation does not go on", () => {
    const { branches } = memory();
    branches.choose("c", "a1", "a2");
    expect(branches.chosen("c", "a2")).toBe("a1");
    expect(branches.chosen("c", "a3")).toBeNull();
    expect(branches.chosen("d", "a2")).toBeNull();
  });

  it("stores nothing about the newest branch", () => {
    const { branches, values } = memory();
    branches.choose("c", "a1", "a2");
    branches.choose("c", "a2", "a2");
    expect(values.size).toBe(0);
  });

  it.each(["", "{", "[", '["a2","', "7"])("does not trip over damaged storage: %j", (stored) => {
    const { branches, values } = memory();
    values.set("p:branch:c", stored);
    expect(branches.chosen("c", "a2") ?? "").toBe("");
  });
});

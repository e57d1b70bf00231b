import { describe, expect, it } from "vitest";
import { faultOf, parsedParams, stopsOf } from "./params";

describe("parsedParams", () => {
  it("keeps what can be sent and drops the rest", () => {
    const stored = { temperature: 0.7, top_p: 7, top_k: 1.5, seed: 3, stop: ["a", 1, ""], truncation: "auto", n: 2 };
    expect(parsedParams(stored)).toEqual({ temperature: 0.7, seed: 3, stop: ["a"], truncation: "auto" });
    expect(parsedParams({ temperature: "1", stop: "x", truncation: "x" })).toEqual({});
  });

  it.each([null, 7, "x", []])("makes nothing of %j", (stored) => expect(parsedParams(stored)).toEqual({}));
});

it("says what is wrong with a number", () => {
  expect(faultOf("temperature", 2)).toBeNull();
  expect(faultOf("temperature", 2.1)).toBe("range");
  expect(faultOf("temperature", NaN)).toBe("range");
  expect(faultOf("max_tokens", 1.5)).toBe("whole");
});

it("takes one stop a line, none twice", () => {
  expect(stopsOf("a\n\n b\na\n")).toEqual(["a", " b"]);
  expect(stopsOf(Array.from({ length: 30 }, (_, at) => `s${at}`).join("\n")).length).toBe(16);
  expect(stopsOf("x".repeat(257))).toEqual([]);
});

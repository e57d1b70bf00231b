import { describe, expect, it } from "vitest";
import { bytes, count, duration, exactMoney, money, rate, sentence, share } from "./format";

describe("count", () => {
  it.each([
    [0, "0"],
    [1234567, "1,234,567"],
  ])("%d", (value, shown) => expect(count(value, "en")).toBe(shown));
});

describe("share", () => {
  it.each([
    [0, 0, "0%"],
    [0, 10, "0%"],
    [1, 1000, "<1%"],
    [299, 300, "99%"],
    [300, 300, "100%"],
    [29, 100, "29%"],
    [57, 100, "57%"],
  ])("%d of %d", (part, whole, shown) => expect(share(part, whole, "en")).toBe(shown));
});

describe("duration", () => {
  it.each([
    [0, "0 ms"],
    [4.56, "4.6 ms"],
    [85.4, "85 ms"],
    [999.4, "999 ms"],
    [999.6, "1 sec"],
    [1234, "1.23 sec"],
    [9996, "10 sec"],
    [59_940, "59.9 sec"],
    [59_960, "1 min 0 sec"],
    [125_000, "2 min 5 sec"],
  ])("%d ms", (ms, shown) => expect(duration(ms, "en")).toBe(shown));
});

describe("rate", () => {
  it.each([
    [34.25, "34.3"],
    [99.96, "100"],
    [1234.4, "1,234"],
  ])("%d", (value, shown) => expect(rate(value, "en")).toBe(shown));
});

describe("money", () => {
  it.each([
    [0, "¥0.00"],
    [1, "¥0.000000001"],
    [42_100, "¥0.0000421"],
    [42_149, "¥0.0000421"],
    [999_999, "¥0.001"],
    [123_456_789, "¥0.123"],
    [999_000_000, "¥0.999"],
    [1_000_000_000, "¥1.00"],
    [12_345_600_000, "¥12.35"],
    [-42_100, "-¥0.0000421"],
  ])("%d nano", (nano, shown) => expect(money(nano, "CNY", "en")).toBe(shown));

  it("shows every nano-unit when asked", () => {
    expect(exactMoney(1_042_149, "CNY", "en")).toBe("¥0.001042149");
    expect(exactMoney(2_000_000_001, "CNY", "en")).toBe("¥2.000000001");
  });
});

describe("sentence", () => {
  it.each([
    ["the server stopped while it was writing", "The server stopped while it was writing."],
    ["Give a conversation, or none.", "Give a conversation, or none."],
    ["try again: ", "Try again:"],
    ["", ""],
  ])("%j", (message, shown) => expect(sentence(message)).toBe(shown));
});

describe("bytes", () => {
  it.each([
    [0, "0 byte"],
    [999, "999 byte"],
    [1000, "1 kB"],
    [1_234_567, "1.2 MB"],
    [250_000_000, "250 MB"],
    [8_000_000_000, "8 GB"],
  ])("%d", (value, shown) => expect(bytes(value, "en")).toBe(shown));
});

import { expect, it } from "vitest";
import { decoded, MOST_BYTES, readText } from "./files";

const utf8 = (text: string): Uint8Array => new TextEncoder().encode(text);

it.each<[string, Uint8Array, string | null]>([
  ["UTF-8", utf8("a\r\nö 你好"), "a\nö 你好"],
  ["UTF-8 with its mark", new Uint8Array([0xef, 0xbb, 0xbf, 0x61]), "a"],
  ["UTF-16", new Uint8Array([0xff, 0xfe, 0x60, 0x4f]), "你"],
  ["GB 18030", new Uint8Array([0xc4, 0xe3, 0xba, 0xc3]), "你好"],
  ["nothing", new Uint8Array(), ""],
  ["a PNG", new Uint8Array([0x89, 0x50, 0x4e, 0x47, 0x0d, 0x0a, 0x1a, 0x0a, 0, 0]), null],
  ["control characters", utf8("a\u0001b"), null],
])("reads %s", (_, bytes, expected) => expect(decoded(bytes)).toBe(expected));

it("refuses what would not fit a frame", async () => {
  const large = new File([new Uint8Array(MOST_BYTES + 1)], "big.txt");
  expect(await readText(large)).toEqual({ refused: "big.txt", because: "large" });
  expect(await readText(new File(["x"], "a\n.txt"))).toEqual({ file: { name: "a .txt", text: "x" } });
});

import { describe, expect, it } from "vitest";
import { fileName, joined, parted, type Written } from "./attachments";

describe("joined and parted", () => {
  it.each<[string, Written]>([
    ["text alone", { files: [], text: "hello\n\nworld" }],
    ["nothing", { files: [], text: "" }],
    ["a file alone", { files: [{ name: "a.py", text: "print('x')\n" }], text: "" }],
    ["an empty file", { files: [{ name: "a b.txt", text: "" }], text: "what is it?" }],
    ["fences in files", { files: [{ name: "a.md", text: "```js\nx\n```\n````\ny\n````" }, { name: "Makefile", text: "all:\n" }], text: "why\n\nFile: x" }],
    ["a file that looks like a message", { files: [{ name: "b.txt", text: "File: c.txt\n```txt\nz\n```\n\nhi" }], text: "go" }],
  ])("give back %s", (_, written) => expect(parted(joined(written))).toEqual(written));

  it.each(["File: a.txt\n```txt\nnever closed", "File: a.txt\n```py\nx\n```", "see File: a.txt\n```txt\nx\n```", "File: a.txt\n```txt\nx\n``` and more"])(
    "take a message of another make as text: %j",
    (message) => expect(parted(message)).toEqual({ files: [], text: message }),
  );
});

it("keeps names on one line", () => {
  expect(fileName("a\nb`c`.txt ")).toBe("a b c .txt");
  expect(fileName("\n")).toBe("text");
  expect(fileName(`${"x".repeat(200)}.py`).endsWith("x.py")).toBe(true);
});

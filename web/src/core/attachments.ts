/**
 * Text files within a message. Pure.
 *
 * The model gets plain text: each file under its name in a fence, then what was written. The same text
 * read back gives the same files, so that drafts, edits and history need nothing beside it.
 */

export interface TextFile {
  readonly name: string;
  readonly text: string;
}

export interface Written {
  readonly files: readonly TextFile[];
  readonly text: string;
}

const LONGEST_NAME = 120;

/** A name that stands on one line and ends in nothing a fence could take for its own. */
export function fileName(name: string): string {
  const plain = name.replace(/[\u0000-\u001f\u007f`]/g, " ").trim();
  return plain.slice(-LONGEST_NAME) || "text";
}

function fenceFor(text: string): string {
  const longest = Math.max(2, ...(text.match(/`+/g) ?? []).map((run) => run.length));
  return "`".repeat(longest + 1);
}

function extension(name: string): string {
  return /\.([A-Za-z0-9]{1,12})$/.exec(name)?.[1]?.toLowerCase() ?? "";
}

export function joined({ files, text }: Written): string {
  const parts = files.map((file) => {
    const fence = fenceFor(file.text);
    return `File: ${file.name}\n${fence}${extension(file.name)}\n${file.text}\n${fence}`;
  });
  return [...parts, ...(text === "" && parts.length > 0 ? [] : [text])].join("\n\n");
}

const HEAD = /^File: ([^\n]{1,120})\n(`{3,})([a-z0-9]{0,12})\n/;

/** What `joined` made `message` of; a message that it did not make is text alone. */
export function parted(message: string): Written {
  const files: TextFile[] = [];
  let rest = message;
  for (let found = HEAD.exec(rest); found; found = HEAD.exec(rest)) {
    const [head, name = "", fence = "", kind = ""] = found;
    const end = rest.indexOf(`\n${fence}`, head.length - 1);
    const after = end + 1 + fence.length;
    const isEnd = end >= 0 && (after === rest.length || rest.startsWith("\n\n", after));
    if (!isEnd || kind !== extension(name)) break;
    files.push({ name, text: rest.slice(head.length, Math.max(head.length, end)) });
    rest = rest.slice(after + 2);
  }
  return { files, text: rest };
}

/** A conversation's messages as a tree, and the one path through it that is shown. Pure. */

export interface Node {
  readonly id: string;
  readonly parentId: string | null;
}

export interface Tree<N extends Node> {
  readonly byId: ReadonlyMap<string, N>;
  /** Children in the order they were made; roots under null. */
  readonly children: ReadonlyMap<string | null, readonly N[]>;
}

/** `nodes` in the order they were made. A node whose parent is unknown counts as a root. */
export function plant<N extends Node>(nodes: Iterable<N>): Tree<N> {
  const byId = new Map<string, N>();
  for (const node of nodes) byId.set(node.id, node);
  const children = new Map<string | null, N[]>();
  for (const node of byId.values()) {
    const parent = parentOf(byId, node);
    const siblings = children.get(parent);
    if (siblings) siblings.push(node);
    else children.set(parent, [node]);
  }
  return { byId, children };
}

function parentOf<N extends Node>(byId: ReadonlyMap<string, N>, node: N): string | null {
  return node.parentId !== null && byId.has(node.parentId) ? node.parentId : null;
}

export function siblingsOf<N extends Node>(tree: Tree<N>, node: N): readonly N[] {
  return tree.children.get(parentOf(tree.byId, node)) ?? [node];
}

/** Root first, `id` last; empty for an unknown id. */
export function pathTo<N extends Node>(tree: Tree<N>, id: string | null): N[] {
  const path: N[] = [];
  let node = id === null ? undefined : tree.byId.get(id);
  while (node) {
    path.push(node);
    node = node.parentId === null ? undefined : tree.byId.get(node.parentId);
  }
  return path.reverse();
}

/** Walks down from `id` (null: from the roots), by the last choice made at each fork, else by the newest child. */
export function leafUnder<N extends Node>(
  tree: Tree<N>,
  id: string | null,
  chosen: ReadonlyMap<string | null, string>,
): string | null {
  let leaf = id;
  for (;;) {
    const children = tree.children.get(leaf);
    const last = children?.[children.length - 1];
    if (!children || !last) return leaf;
    const wanted = chosen.get(leaf);
    leaf = (children.find((child) => child.id === wanted) ?? last).id;
  }
}

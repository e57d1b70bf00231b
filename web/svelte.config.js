/** `fragments: "tree"` builds the DOM node by node, so that no component needs `innerHTML`. */
export default {
  compilerOptions: { runes: true, fragments: "tree" },
};

/** KaTeX and its style, fetched when the first formula needs them. It builds nodes, not HTML. */

import katex from "katex";
import "katex/dist/katex.min.css";

/** Shows `tex` in `element`; what KaTeX does not understand stays as it was written, in red. */
export function renderFormula(tex: string, element: HTMLElement, display: boolean): void {
  katex.render(tex, element, {
    displayMode: display,
    throwOnError: false,
    errorColor: "var(--danger)",
    strict: "ignore",
    trust: false, // no links, pictures or attributes of the model's choosing
    maxSize: 20,
    maxExpand: 200,
  });
}

/** KaTeX and its style, fetched when the first formula needs them. It builds nodes, not HTML. */

import katex from "katex";
import "katex/dist/katex.min.css";

/** Shows `tex` in `element`; what KaTeX does not understand stays as it was written. */
export function renderFormula(tex: string, element: HTMLElement, display: boolean): void {
  try {
    katex.render(tex, element, {
      displayMode: display,
      throwOnError: true, // its own way to show errors needs a style attribute
      errorColor: "var(--danger)",
      strict: "ignore",
      trust: false, // no links, pictures or attributes of the model's choosing
      maxSize: 20,
      maxExpand: 200,
    });
  } catch (error) {
    if (!(error instanceof katex.ParseError || error instanceof RangeError)) throw error; // or nested too deep
    element.textContent = tex;
    element.title = error.message;
  }
}

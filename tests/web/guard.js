// Writes down whatever comes into the page that answers must not bring: elements, attributes, policy reports.
window.chatdForeign = [];
const TAGS = new Set(("ol ul li article h1 h2 div p span a bdi strong em del code pre figure figcaption button svg path rect circle " +
  "table thead tbody tr th td hr blockquote sub sup kbd mark u s ins b i small footer details summary form textarea").split(" "));
const look = (element) => {
  const inFormula = element.closest(".katex, .katex-error") !== null;
  if (!inFormula && !TAGS.has(element.localName)) window.chatdForeign.push(element.outerHTML.slice(0, 200));
  for (const { name, value } of element.attributes) {
    const isLink = name === "href" && (/^(https?:|mailto:)/.test(value) || element.closest("aside, .skip"));
    const isBad = /^on|^(src|srcset|srcdoc|action|formaction|poster|data|background|xlink:href|href)$/.test(name);
    const isStyle = name === "style" && !inFormula && element.localName !== "textarea";
    if ((isBad && !isLink) || isStyle) window.chatdForeign.push(`${element.localName} ${name}=${value}`);
  }
};
addEventListener("DOMContentLoaded", () => new MutationObserver((changes) => {
  for (const { target, addedNodes, type } of changes) {
    if (!target.closest?.("main, h1, nav")) continue;
    if (type === "attributes") look(target);
    for (const node of addedNodes) if (node.nodeType === 1) [node, ...node.querySelectorAll("*")].forEach(look);
  }
}).observe(document.body, { subtree: true, childList: true, attributes: true }));
document.addEventListener("securitypolicyviolation", (event) => window.chatdForeign.push(`policy: ${event.violatedDirective} ${event.sourceFile}:${event.lineNumber}`));

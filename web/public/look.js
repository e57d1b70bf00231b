// Runs before the first paint, so that no other theme or width flashes up. The rest is app/look.svelte.ts.
(() => {
  let look = {};
  try {
    look = JSON.parse(localStorage.getItem("chatd:look") || "{}") || {};
  } catch {
    // Storage that is switched off, or damaged: the defaults hold.
  }
  const root = document.documentElement;
  if (look.theme === "light" || look.theme === "dark") root.dataset.theme = look.theme;
  if (look.sidebar === false) root.dataset.sidebar = "closed";
  const wanted = look.language || (/^zh\b/i.test(navigator.language) ? "zh-CN" : "en");
  root.lang = wanted === "zh-CN" ? "zh-CN" : "en";
})();

"""How the page of a report looks, on a screen in light and dark, and on paper."""

STYLE = """
:root { color-scheme: light dark; --ink: #1c2330; --dim: #5d6778; --paper: #fff; --card: #f4f6f9;
  --edge: #dde2ea; --s1: #0b8a7d; --s2: #d29222; --s3: #7486a8; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e9ef; --dim: #98a2b3; --paper: #14181f;
  --card: #1d232d; --edge: #323a47; --s1: #2cb8a8; --s2: #e0a83f; --s3: #8296bd; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 82rem; padding: 1.5rem; background: var(--paper); color: var(--ink);
  font: 15px/1.45 system-ui, sans-serif; }
h1 { font-size: 1.5rem; margin: 0; }
h2 { font-size: 1.1rem; margin: 2rem 0 .5rem; }
.note, footer { color: var(--dim); margin: .25rem 0; font-size: .87rem; }
footer { margin-top: 2rem; border-top: 1px solid var(--edge); padding-top: .75rem; }
.cards { display: grid; grid-template-columns: repeat(auto-fit, minmax(8.4rem, 1fr)); gap: .6rem;
  margin: 1.2rem 0; }
.cards div { background: var(--card); border: 1px solid var(--edge); border-radius: .5rem;
  padding: .6rem .8rem; }
.cards dt { color: var(--dim); font-size: .8rem; }
.cards dd { margin: 0; font-size: 1.15rem; font-weight: 600; font-variant-numeric: tabular-nums; }
figure { margin: 1.4rem 0 0; break-inside: avoid; }
figcaption { font-weight: 600; display: flex; flex-wrap: wrap; gap: .2rem 1rem; align-items: baseline; }
figcaption small { font-weight: 400; color: var(--dim); }
figcaption span { margin-right: .9rem; white-space: nowrap; }
figcaption span::before { content: ""; display: inline-block; width: .7em; height: .7em; border-radius: 2px;
  margin-right: .35em; background: currentColor; print-color-adjust: exact; }
figcaption .s1::before { background: var(--s1); }
figcaption .s2::before { background: var(--s2); }
figcaption .s3::before { background: var(--s3); }
svg { width: 100%; height: auto; display: block; margin-top: .3rem; }
svg .axis { fill: var(--dim); font-size: 12px; font-variant-numeric: tabular-nums; }
svg .grid { stroke: var(--edge); }
svg .base { stroke: var(--dim); }
svg .s1 { fill: var(--s1); }
svg .s2 { fill: var(--s2); }
svg .s3 { fill: var(--s3); }
svg .line { fill: none; stroke-width: 2; }
svg .line.s1 { stroke: var(--s1); }
svg .line.s3 { stroke: var(--s3); }
svg .hint { fill: transparent; }
svg .hint:hover { fill: var(--ink); fill-opacity: .08; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: .82rem; font-variant-numeric: tabular-nums; width: 100%; }
th, td { padding: .3rem .4rem; text-align: right; white-space: nowrap; border-bottom: 1px solid var(--edge); }
thead th { color: var(--dim); font-weight: 500; vertical-align: bottom; white-space: pre-line; }
tbody th, thead th:first-child { text-align: left; font-weight: 500; max-width: clamp(8rem, 20vw, 18rem);
  overflow: hidden; text-overflow: ellipsis; }
tbody small { color: var(--dim); }
.total > * { font-weight: 700; border-bottom: 0; }
@media print { :root { color-scheme: light; --ink: #000; --dim: #444; --paper: #fff; --card: #fff;
  --edge: #bbb; --s1: #0b8a7d; --s2: #d29222; --s3: #7486a8; }
  body { max-width: none; padding: 0; font-size: 11px; }
  svg * { print-color-adjust: exact; -webkit-print-color-adjust: exact; } table { font-size: 8px; }
  th, td { padding: .15rem .25rem; } .wide { overflow: visible; } tr { break-inside: avoid; } }
"""

import { createHash } from "node:crypto";
import { readFileSync } from "node:fs";
import { svelte } from "@sveltejs/vite-plugin-svelte";
import { defineConfig, type Plugin } from "vitest/config";

// `vite dev` talks to a chatd that runs beside it; the built page talks to wherever it came from.
const chatd = process.env["CHATD_DEV_SERVER"] ?? "http://127.0.0.1:8000";
const forwarded = Object.fromEntries(
  ["/api", "/healthz", "/readyz"].map((path) => [path, { target: chatd, changeOrigin: true }]),
);

/** Of KaTeX's fonts the one form that every browser takes which can run this page. */
function woff2Only(): Plugin {
  return {
    name: "woff2-only",
    enforce: "pre",
    transform(code, id) {
      if (!id.includes("katex") || !id.includes(".css")) return null;
      return code.replace(/,url\([^)]*\.(?:woff|ttf)\) format\("(?:woff|truetype)"\)/g, "");
    },
  };
}

/** sw.js: src/sw/worker.js with the names of what the first load needs, and of the script and style that come later. */
function serviceWorker(): Plugin {
  return {
    name: "service-worker",
    apply: "build",
    generateBundle(_, bundle) {
      const entry = Object.values(bundle).find((file) => file.type === "chunk" && file.isEntry);
      const first = entry?.type === "chunk" ? [entry.fileName, ...entry.imports, ...(entry.viteMetadata?.importedCss ?? [])] : [];
      const shell = ["./", "./look.js", "./icon.svg", ...first.map((name) => `./${name}`)];
      const later = Object.keys(bundle)
        .filter((name) => /\.(?:js|css)$/.test(name) && !first.includes(name))
        .map((name) => `./${name}`);
      const worker = readFileSync(new URL("src/sw/worker.js", import.meta.url), "utf8");
      const version = createHash("sha256").update(Object.keys(bundle).sort().join("\n") + worker).digest("hex").slice(0, 12);
      const source = `const VERSION = ${JSON.stringify(version)};\nconst SHELL = ${JSON.stringify(shell)};\nconst LATER = ${JSON.stringify(later)};\n\n${worker}`;
      this.emitFile({ type: "asset", fileName: "sw.js", source });
    },
  };
}

export default defineConfig({
  base: "./", // works under any sub-path
  plugins: [woff2Only(), svelte(), serviceWorker()],
  build: {
    target: "es2023",
    assetsInlineLimit: 0, // no data: addresses, so that the page's policy stays 'self'
    modulePreload: { polyfill: false },
    reportCompressedSize: false,
  },
  server: {
    proxy: { ...forwarded, "/ws": { target: chatd, ws: true, changeOrigin: true } },
  },
  test: { include: ["src/**/*.test.ts"], environment: "node" },
});

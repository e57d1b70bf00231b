import { svelte } from "@sveltejs/vite-plugin-svelte";
import { defineConfig } from "vitest/config";

// `vite dev` talks to a chatd that runs beside it; the built page talks to wherever it came from.
const chatd = process.env["CHATD_DEV_SERVER"] ?? "http://127.0.0.1:8000";
const forwarded = Object.fromEntries(
  ["/api", "/healthz", "/readyz"].map((path) => [path, { target: chatd, changeOrigin: true }]),
);

export default defineConfig({
  base: "./", // works under any sub-path
  plugins: [svelte()],
  build: {
    target: "es2022",
    assetsInlineLimit: 0, // no data: addresses, so that the page's policy stays 'self'
    modulePreload: { polyfill: false },
    reportCompressedSize: false,
  },
  server: {
    proxy: { ...forwarded, "/ws": { target: chatd, ws: true, changeOrigin: true } },
  },
  test: { include: ["src/**/*.test.ts"], environment: "node" },
});

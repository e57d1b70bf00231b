/**
 * The page's own files, kept so that it opens while the server is away. Conversations are kept elsewhere
 * (app/kept.ts); nothing but those files is ever answered from here.
 *
 * The build puts VERSION, SHELL (what the first load needs) and LATER (what code, formulas and the other places need)
 * before this text: see vite.config.ts.
 */

const CACHE = `chatd-page-${VERSION}`;
const within = (url) => url.origin === location.origin && url.pathname.startsWith(new URL("./", location.href).pathname);

self.addEventListener("install", (event) => {
  event.waitUntil(keepAll());
  self.skipWaiting();
});

self.addEventListener("activate", (event) => {
  const isOld = (name) => name.startsWith("chatd-page-") && name !== CACHE;
  event.waitUntil(caches.keys().then((names) => Promise.all(names.filter(isOld).map((name) => caches.delete(name)))));
});

self.addEventListener("fetch", (event) => {
  const { request } = event;
  const url = new URL(request.url);
  if (request.method !== "GET" || !within(url)) return;
  if (request.mode === "navigate") event.respondWith(fetch(request).catch(() => kept("./")));
  else if (url.pathname.includes("/assets/")) event.respondWith(asset(request));
  else if (/\/(?:look\.js|icon\.svg)$/.test(url.pathname)) event.respondWith(fetch(request).catch(() => kept(request)));
});

/** Without the shell there is no page; what comes later is only missed. */
async function keepAll() {
  const cache = await caches.open(CACHE);
  await cache.addAll(SHELL);
  await cache.addAll(LATER).catch(() => undefined);
}

async function kept(request) {
  return (await caches.match(request, { cacheName: CACHE })) ?? Response.error();
}

/** Names of assets carry a hash of their content: one that is here is right. */
async function asset(request) {
  const cache = await caches.open(CACHE);
  const known = await cache.match(request);
  if (known) return known;
  const response = await fetch(request);
  if (response.ok) await cache.put(request, response.clone());
  return response;
}

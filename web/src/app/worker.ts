/** Registers the service worker, which keeps the page's own files for when the server is away. */

/** As far as it is needed here; TypeScript does not know it. */
interface TrustedTypes {
  createPolicy(name: string, rules: { createScriptURL(wanted: string): string }): { createScriptURL(wanted: string): object };
}

/** Does nothing where browsers have none: on plain http other than localhost. */
export function keepPage(): void {
  if (!import.meta.env.PROD || !("serviceWorker" in navigator)) return;
  const address = new URL("sw.js", document.baseURI).href;
  const { trustedTypes } = window as { trustedTypes?: TrustedTypes };
  const policy = trustedTypes?.createPolicy("chatd", {
    createScriptURL: (wanted) => {
      if (wanted !== address) throw new TypeError(`${wanted} is no script of this page`);
      return wanted;
    },
  });
  const script = (policy?.createScriptURL(address) ?? address) as unknown as string;
  // A worker that cannot be had (a full disk, a private window) is only missed offline.
  navigator.serviceWorker.register(script).catch(() => undefined);
}

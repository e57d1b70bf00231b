/**
 * Keeps the page as high as what can be seen of it. On iOS the keyboard covers the page instead of
 * making it smaller; elsewhere the viewport's own setting (index.html) does that.
 */
export function keepInView(): () => void {
  const viewport = window.visualViewport;
  if (!viewport) return () => undefined;
  const fit = (): void => {
    const covered = viewport.scale === 1 && window.innerHeight - viewport.height > 1;
    document.documentElement.style.setProperty("--page-height", covered ? `${viewport.height}px` : "100%");
    if (covered) window.scrollTo(0, 0);
  };
  viewport.addEventListener("resize", fit);
  fit();
  return () => viewport.removeEventListener("resize", fit);
}

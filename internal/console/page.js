"use strict";
// The page refreshes itself: what is live is taken from a new copy of it, as it is.
const every = 5000;
const refresh = async () => {
  if (document.hidden) return;
  const stale = document.getElementById("stale");
  try {
    const answer = await fetch(location.href, {cache: "no-store"});
    if (!answer.ok) throw new Error(answer.status);
    const next = new DOMParser().parseFromString(await answer.text(), "text/html");
    for (const part of document.querySelectorAll("[data-live]")) {
      const fresh = next.getElementById(part.id);
      if (fresh) part.replaceWith(document.adoptNode(fresh));
    }
    document.title = next.title;
    stale.hidden = true;
  } catch {
    stale.hidden = false;
  }
};
setInterval(refresh, every);
document.addEventListener("visibilitychange", refresh);

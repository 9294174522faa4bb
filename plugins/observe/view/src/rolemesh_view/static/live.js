// Keeps the page up to date: the viewer sends parts of it when they have changed, in one stream of events.
"use strict";
(() => {
  const {stream, mark} = document.documentElement.dataset, said = ["silent", "refused", "still"];
  if (!stream) return;
  const tell = wanted => said.forEach(id => { document.getElementById(id).hidden = id !== wanted; });
  if (!window.EventSource) { tell("still"); return; }
  const LOOK_MS = 10000; // until the page of an ended run asks whether another run has its folder
  const told = new Map();
  let source = null, timer = 0, tries = 0;

  // Puts the new text of a part in place. What has the focus keeps it, and wide tables stay where they are scrolled to.
  function put(id, text) {
    const old = document.getElementById(id), made = document.createElement("template");
    made.innerHTML = text;
    const part = made.content.firstElementChild;
    if (!old || !part || told.get(id) === text) return;
    told.set(id, text);
    const places = [...old.querySelectorAll(".wide")].map(each => each.scrollLeft), active = document.activeElement;
    const named = old.contains(active) ? active.id ? "#" + CSS.escape(active.id) : active.getAttribute("href") ? `[href="${CSS.escape(active.getAttribute("href"))}"]` : "" : "";
    old.replaceWith(part);
    part.querySelectorAll(".wide").forEach((each, at) => { each.scrollLeft = places[at] || 0; });
    if (named) part.querySelector(named)?.focus({preventScroll: true});
  }
  function close() { clearTimeout(timer); source?.close(); source = null; }
  function open() {
    close();
    if (document.hidden) return; // a browser opens six connections to one host: those that are in sight need them
    source = new EventSource(stream);
    source.onopen = () => { tries = 0; tell(""); };
    source.addEventListener("mark", event => { if (mark && event.data !== mark) { close(); location.reload(); } });
    for (const id of ["status", "live"]) source.addEventListener(id, event => put(id, event.data));
    for (const name of ["record", "metrics", "files", "log"]) source.addEventListener(name, event => document.dispatchEvent(new CustomEvent("rolemesh:" + name, {detail: event.data})));
    source.addEventListener("over", () => { close(); timer = setTimeout(open, LOOK_MS); });
    source.onerror = async () => {
      if (source?.readyState === EventSource.CLOSED) { // refused: a browser does not try that again by itself
        close();
        timer = setTimeout(open, Math.min(8000, 1000 * 2 ** ++tries));
      }
      const answer = await fetch("/static/icon.svg").catch(() => null);
      if (source?.readyState !== EventSource.OPEN) tell(answer?.status === 401 ? "refused" : answer ? "" : "silent");
    };
  }
  document.addEventListener("visibilitychange", () => document.hidden ? close() : open());
  addEventListener("focus", () => { if (!source) open(); });
  addEventListener("pagehide", close);
  addEventListener("pageshow", event => { if (event.persisted) open(); });
  open();
})();

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

  const place = node => node.getBoundingClientRect?.() ?? {};
  const keyed = node => node.dataset?.key !== undefined;
  const alike = (one, other) => !keyed(one) && !keyed(other) && one.nodeName === other.nodeName && (one.id ?? "") === (other.id ?? "");

  // Makes `old` like `made`, but keeps each node that both have, with its focus, selection, scroll position and input.
  // Nodes with `data-key` are the same if their keys are. In a list with `data-tail`, the last ones stay while in sight.
  function morph(old, made) {
    if (old.isEqualNode(made)) return;
    if (old.nodeType !== Node.ELEMENT_NODE) { old.data = made.data; return; }
    for (const {name, value} of made.attributes) if (old.getAttribute(name) !== value) old.setAttribute(name, value);
    for (const name of old.getAttributeNames()) if (!made.hasAttribute(name)) old.removeAttribute(name);
    const nodes = [...made.childNodes], wanted = new Set(nodes.filter(keyed).map(each => each.dataset.key));
    const known = new Map([...old.childNodes].filter(keyed).map(each => [each.dataset.key, each]));
    let at = old.firstChild;
    const pass = isWanted => { // goes on to the next node that is wanted, and removes those before it
      while (at && !isWanted(at)) [at] = [at.nextSibling, at.remove()];
    };
    nodes.forEach((each, number) => {
      const found = keyed(each) ? known.get(each.dataset.key) : null;
      if (found) pass(node => node === found || wanted.has(node.dataset?.key));
      else if (!keyed(each)) pass(node => keyed(node) ? wanted.has(node.dataset.key) : nodes.slice(number).some(one => alike(node, one)));
      const same = found ?? (at && alike(at, each) ? at : null);
      wanted.delete(each.dataset?.key);
      known.delete(each.dataset?.key);
      if (!same) { old.insertBefore(each, at); return; }
      if (same === at) at = at.nextSibling; else old.insertBefore(same, at);
      morph(same, each);
    });
    const stays = node => "tail" in (old.dataset ?? {}) && place(node).top < innerHeight && place(node).bottom > 0;
    while (at) {
      const node = at;
      at = at.nextSibling;
      if (!stays(node)) node.remove();
    }
  }
  // Returns what the reader looks at, where the browser does not keep that in place by itself.
  function anchor() {
    if (!scrollY || CSS.supports("overflow-anchor", "auto")) return null;
    return [...document.querySelectorAll("main :is(h2, p, article, [data-key])")].find(each => place(each).bottom > 0);
  }

  // Puts the new text of a part in place. What has the focus keeps it, also if it is made again.
  function put(id, text) {
    const old = document.getElementById(id), made = document.createElement("template");
    made.innerHTML = text;
    const part = made.content.firstElementChild;
    if (!old || !part || told.get(id) === text) return;
    told.set(id, text);
    if (old.dataset.kind !== part.dataset.kind) { location.reload(); return; } // the rest of the page is another one, too
    const active = document.activeElement, within = old.contains(active);
    const named = within ? active.id ? "#" + CSS.escape(active.id) : active.getAttribute("href") ? `[href="${CSS.escape(active.getAttribute("href"))}"]` : "" : "";
    const seen = anchor(), top = seen && place(seen).top;
    morph(old, part);
    if (seen?.isConnected) scrollBy(0, place(seen).top - top);
    if (within && document.activeElement !== active) (active.isConnected ? active : named ? old.querySelector(named) : null)?.focus({preventScroll: true});
  }
  function close() { clearTimeout(timer); source?.close(); source = null; }
  function open() {
    close();
    if (document.hidden) return; // a browser opens six connections to one host: those that are in sight need them
    source = new EventSource(stream);
    source.onopen = () => { tries = 0; tell(""); };
    source.addEventListener("mark", event => { if (mark && event.data !== mark) { close(); location.reload(); } });
    for (const id of ["status", "live"]) source.addEventListener(id, event => put(id, event.data));
    for (const name of ["record", "metrics", "files", "log", "rows"]) source.addEventListener(name, event => document.dispatchEvent(new CustomEvent("rolemesh:" + name, {detail: event.data})));
    source.addEventListener("over", () => { close(); timer = setTimeout(open, LOOK_MS); });
    source.onerror = async () => {
      if (source?.readyState === EventSource.CLOSED) { // refused: a browser does not try that again by itself
        close();
        timer = setTimeout(open, Math.min(8000, 1000 * 2 ** ++tries));
      }
      const answer = await fetch(document.querySelector("link[rel=icon]").href).catch(() => null);
      if (source?.readyState !== EventSource.OPEN) tell(answer?.status === 401 ? "refused" : answer ? "" : "silent");
    };
  }
  document.addEventListener("visibilitychange", () => document.hidden ? close() : open());
  addEventListener("focus", () => { if (!source) open(); });
  addEventListener("pagehide", close);
  addEventListener("pageshow", event => { if (event.persisted) open(); });
  open();
})();

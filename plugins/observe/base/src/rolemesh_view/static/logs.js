// Shows the end of a log while it grows. If the reader has scrolled up or selects text, the newer lines wait for him.
"use strict";
(() => {
  const log = document.getElementById("log"), newer = document.getElementById("newer"), files = document.getElementById("files");
  const NEAR_PX = 8; // from the end of the log
  let waiting = null;

  const atEnd = () => log.scrollHeight - log.scrollTop - log.clientHeight < NEAR_PX;
  const selects = () => { const found = getSelection(); return !found.isCollapsed && found.containsNode(log, true); };
  function show() {
    if (waiting !== null) log.textContent = waiting || "This log is empty.";
    waiting = null;
    newer.hidden = true;
    log.scrollTop = log.scrollHeight;
  }
  document.addEventListener("rolemesh:files", event => {
    const names = JSON.parse(event.detail);
    if (!files) { if (names.length) location.reload(); return; } // the page has shown that there are none
    const known = new Set([...files.options].map(each => each.value));
    for (const name of names) if (!known.has(name)) files.add(new Option(name));
  });
  if (!log) return;
  document.addEventListener("rolemesh:log", event => {
    const text = JSON.parse(event.detail);
    if (text === (waiting ?? log.textContent)) return;
    const follows = waiting === null && atEnd() && !selects();
    waiting = text;
    if (follows) show(); else newer.hidden = false;
  });
  log.addEventListener("scroll", () => { if (waiting !== null && atEnd() && !selects()) show(); });
  newer.addEventListener("click", show);
  show();
})();

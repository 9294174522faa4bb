// Says on the page that the viewer has gone: its polls fail, or a new viewer refuses the old token.
"use strict";
(() => {
  const said = document.getElementById("silent");
  document.addEventListener("htmx:afterRequest", event => { said.hidden = Boolean(event.detail.successful); });
  document.addEventListener("htmx:sendError", () => { said.hidden = false; });
})();

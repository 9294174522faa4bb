// Says on the page that the viewer has gone: its polls fail, or a new viewer refuses the old token.
"use strict";
(() => {
  const said = document.getElementById("silent");
  const lost = () => { said.hidden = false; };
  document.addEventListener("htmx:sendError", lost);
  document.addEventListener("htmx:timeout", lost);
  document.addEventListener("htmx:responseError", lost);
  document.addEventListener("htmx:afterOnLoad", () => { said.hidden = true; });
})();

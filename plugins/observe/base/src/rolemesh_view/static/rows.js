// The rows on the page stay while the lists above them follow the job. A button shows newer ones.
"use strict";
(() => {
  const range = document.getElementById("range");
  if (range) document.addEventListener("rolemesh:rows", event => {
    document.getElementById("newer").hidden = event.detail === range.dataset.newest;
  });
})();

"use strict";
// A page that `qae report --watch` serves asks now and then whether the runs have gone on, and loads itself again.
setInterval(async () => {
  try {
    const state = await (await fetch("state", { cache: "no-store" })).text();
    if (state !== DATA.live && !document.hidden && !document.getElementById("help").open) location.reload();
  } catch { /* the server has stopped: the page stays as it is */ }
}, 4000);

"use strict";
// Start-up: theme, keyboard, data, the packed plotly bundle, printing.

const DATA = JSON.parse(document.getElementById("data").textContent);
const RUNS = DATA.runs;
// plotly reads a little markup in labels: hand it none
const plain = (text) => text.replace(/&/g, "&amp;").replace(/</g, "&lt;");
const ARMS = DATA.arms.map((arm, index) => ({ label: plain(arm.label), safeLabel: plain(arm.label), index, runs: arm.runs.map((i) => RUNS[i]) }));
let drawn = false;

const redraw = () => { if (drawn) drawAll(ARMS); };
function setTheme(name, keep) {
  document.documentElement.dataset.theme = name;
  document.querySelectorAll(".swatch").forEach((node) => { node.style.background = armColour(+node.dataset.arm); });
  if (keep) try { localStorage.setItem("qae-theme", name); } catch { /* a file page may have no storage */ }
  redraw();
}
const preferred = matchMedia("(prefers-color-scheme: dark)");
setTheme(theme());
preferred.addEventListener("change", (event) => { if (!kept) setTheme(event.matches ? "dark" : "light"); });
const toggle = () => { kept = theme() === "dark" ? "light" : "dark"; setTheme(kept, true); };

const help = document.getElementById("help");
document.getElementById("theme").addEventListener("click", toggle);
document.getElementById("keys").addEventListener("click", () => help.showModal());
document.getElementById("print").addEventListener("click", () => window.print());
const parts = [...document.querySelectorAll("main section")];
const jump = (by) => {
  const now = parts.findIndex((part) => part.getBoundingClientRect().bottom > 80);
  const part = parts[Math.max(0, Math.min(parts.length - 1, now + by))];
  part.scrollIntoView(); part.focus({ preventScroll: true });
};
const KEYS = {
  t: toggle, p: () => window.print(), "?": () => help.showModal(), "]": () => jump(1), "[": () => jump(-1),
  "/": () => document.getElementById("f-search")?.focus(),
  j: () => document.dispatchEvent(new CustomEvent("qae-sample", { detail: 1 })),
  k: () => document.dispatchEvent(new CustomEvent("qae-sample", { detail: -1 })),
};
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName)) {
    if (event.key === "Escape") event.target.blur();
    return;
  }
  if (KEYS[event.key] && !help.open) { event.preventDefault(); KEYS[event.key](); }
});

let before = null;
addEventListener("beforeprint", () => { before = theme(); setTheme("light"); });
addEventListener("afterprint", () => setTheme(before || "light"));

async function loadPlotly() {
  const packed = Uint8Array.from(atob(document.getElementById("plotly").textContent.trim()), (c) => c.charCodeAt(0));
  const code = await new Response(new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"))).text();
  const script = document.createElement("script");
  script.text = code;
  document.head.append(script);
}

if (DATA.samples.length) startSamples(DATA.samples, RUNS);
placeCharts(ARMS);
loadPlotly().then(() => { drawn = true; drawAll(ARMS); document.documentElement.dataset.ready = "yes"; }).catch((error) => {
  document.querySelectorAll(".chart").forEach((box) => { box.className = "chart empty"; box.textContent = "This browser cannot unpack the charts; any browser of 2023 or later can."; });
  console.error(error);
});

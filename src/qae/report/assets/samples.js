"use strict";
// The viewer of completions. Text reaches the page through textContent only, so nothing in it can become markup.

const visible = (text) => text.replace(/[\u0000-\u0008\u000b-\u001f]/g, (c) => String.fromCharCode(0x2400 + c.charCodeAt(0)))
  .replace(/[\u007f-\u009f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]/g, (c) => `\u27e8U+${c.charCodeAt(0).toString(16).toUpperCase().padStart(4, "0")}\u27e9`);
const signed = (x) => x > 0 ? "positive" : x < 0 ? "negative" : "zero";
const make = (tag, className, text) => {
  const node = document.createElement(tag);
  if (className) node.className = className;
  if (text !== undefined) node.textContent = text;
  return node;
};

function startSamples(samples, runs) {
  const list = document.getElementById("sample-list"), detail = document.getElementById("sample-detail"), count = document.getElementById("sample-count");
  const filters = ["run", "step", "prompt", "regime", "sign", "outcome"].map((name) => document.getElementById("f-" + name)).filter(Boolean);
  const search = document.getElementById("f-search");
  const outcomeOf = (s) => s.outcome === null ? "unscored" : s.outcome >= 1 ? "right" : "wrong";
  const value = { run: (s) => String(s.run), step: (s) => String(s.step), prompt: (s) => s.id, regime: (s) => s.regime, sign: (s) => signed(s.advantage), outcome: outcomeOf };
  let shown = [], chosen = 0;

  for (const select of filters) {
    const name = select.id.slice(2), options = [...new Set(samples.map(value[name]))];
    if (name === "step" || name === "run") options.sort((a, b) => a - b); else options.sort();
    select.append(new Option("all", ""));
    for (const option of options) select.append(new Option(name === "run" ? runs[option].label : visible(option).slice(0, 60), option));
    select.addEventListener("change", refresh);
  }
  search.addEventListener("input", refresh);

  function refresh() {
    const text = search.value.toLowerCase();
    shown = samples.filter((s) => filters.every((f) => !f.value || value[f.id.slice(2)](s) === f.value)
      && (!text || (s.prompt + "\n" + s.text + s.tail).toLowerCase().includes(text)));
    count.textContent = `${shown.length} of ${samples.length}`;
    list.replaceChildren(...shown.map((s, i) => {
      const item = make("button"), outcome = outcomeOf(s);
      item.type = "button"; item.setAttribute("role", "option"); item.tabIndex = -1;
      item.append(make("span", "p mono", visible(s.prompt).replace(/\s+/g, " ").slice(-80)), make("span", outcome, outcome),
        make("span", "s", `step ${s.step} \u00b7 ${s.regime} \u00b7 advantage ${s.advantage.toPrecision(3).replace(/\.?0+$/, "")}${s.entropies ? " \u00b7 tokens" : ""}`));
      item.addEventListener("click", () => choose(i));
      return item;
    }));
    choose(Math.max(0, shown.findIndex((s) => s.pieces)));
  }

  function choose(i, focus) {
    chosen = Math.max(0, Math.min(shown.length - 1, i));
    [...list.children].forEach((item, j) => { item.setAttribute("aria-selected", String(j === chosen)); item.tabIndex = j === chosen ? 0 : -1; });
    const current = list.children[chosen];
    if (current && focus) { current.focus({ preventScroll: true }); current.scrollIntoView({ block: "nearest" }); }
    detail.replaceChildren(...(shown.length ? describe(shown[chosen]) : [make("p", "empty", "No completion fits these filters.")]));
    detail.scrollTop = 0;
  }

  function describe(s) {
    const facts = make("div", "facts");
    const fact = (text, className) => facts.append(make("span", "fact " + (className || ""), text));
    if (runs.length > 1) fact(runs[s.run].label);
    fact("step " + s.step); fact(outcomeOf(s), outcomeOf(s)); fact(s.regime + " group");
    fact(`advantage ${s.advantage}`); if (s.reward !== null) fact(`reward ${s.reward}`);
    fact(`${s.tokens} tokens${s.truncated ? ", cut off at the limit" : ""}`);
    if (s.entropy !== null) fact(`${s.entropy} nats a token`);
    if (s.level) fact("level " + visible(s.level));
    const parts = [facts, make("div", "muted small", "Prompt"), make("div", "text mono", visible(s.prompt)), make("div", "muted small", "Completion")];
    if (s.pieces) parts.push(coloured(s));
    else {
      parts.push(make("div", "text mono", visible(s.text)));
      if (s.cut) parts.push(make("p", "muted small", `${s.cut.toLocaleString("en")} characters are not shown here`), make("div", "text mono", visible(s.tail)));
    }
    if (s.entropies) parts.push(scale(s));
    return parts;
  }

  const top = (s) => Math.max(1, ...s.entropies);
  function coloured(s) {
    const text = make("div", "text mono"), most = top(s);
    s.pieces.forEach((piece, i) => {
      const token = make("span", "", visible(piece));
      token.dataset.h = s.entropies[i];
      token.style.background = `rgba(var(--heat), ${(0.75 * s.entropies[i] / most).toFixed(3)})`;
      token.title = `${s.entropies[i].toFixed(3)} nats${s.logprobs ? `, log-prob ${s.logprobs[i].toFixed(3)}` : ""}`;
      text.append(token);
    });
    if (s.tokens > s.pieces.length) text.append(make("span", "muted", ` \u2026 ${s.tokens - s.pieces.length} more tokens`));
    return text;
  }
  function scale(s) {
    const row = make("div", "scale"), sorted = [...s.entropies].sort((a, b) => b - a);
    const few = sorted.slice(0, Math.ceil(sorted.length / 5)), sum = (v) => v.reduce((a, b) => a + b, 0);
    const share = sum(sorted) > 0 ? Math.round(100 * sum(few) / sum(sorted)) : 0;
    row.append("0", make("i"), `${top(s).toFixed(2)} nats \u00b7 the top 20% of the tokens carry ${share}% of the entropy`);
    return row;
  }

  list.addEventListener("keydown", (event) => {
    const move = { ArrowDown: 1, j: 1, ArrowUp: -1, k: -1, PageDown: 10, PageUp: -10, Home: -1e9, End: 1e9 }[event.key];
    if (move) { event.preventDefault(); event.stopPropagation(); choose(chosen + move, true); }
  });
  document.addEventListener("qae-sample", (event) => choose(chosen + event.detail, document.activeElement.parentElement === list));
  refresh();
}

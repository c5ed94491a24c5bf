"use strict";
// Every chart of the page: what it shows (CHARTS), how runs become lines and bands, and the colours of both themes.

const ARM_COLOURS = {
  light: ["#2f5fd0", "#d2691e", "#12806a", "#9b3fb5", "#b3870a", "#c2305c", "#4b6b8a", "#5a8a1f"],
  dark: ["#7ea6ff", "#ff9d57", "#4fd0b0", "#d68bea", "#ecc14f", "#ff7fa3", "#9dbbd8", "#a5d65c"],
};
const ROLE_COLOURS = {
  light: { main: "#2f5fd0", good: "#12806a", bad: "#c2382e", third: "#8a93a3", fourth: "#b3870a", fifth: "#9b3fb5" },
  dark: { main: "#7ea6ff", good: "#4fd0b0", bad: "#ff857a", third: "#8a94a6", fourth: "#ecc14f", fifth: "#d68bea" },
};
const DASHES = ["solid", "dash", "dot", "dashdot"];

const line = (key, name, role) => ({ key, name, role });
const CHARTS = [
  { id: "pass1", part: "learning", title: "pass@1 on held-out problems", what: "With 95% intervals over problems.", kind: "eval", key: "eval/pass@1", y: ".3~p" },
  { id: "outcome", part: "learning", title: "Pass rate in training", what: "Mean outcome of the sampled completions.", y: ".3~p", lines: [line("outcome", "pass rate", "main")] },
  { id: "reward", part: "learning", title: "Reward", what: "After shaping; the spread is over completions.", lines: [line("reward", "mean", "main"), line("reward_std", "std", "third")] },
  { id: "passk", part: "learning", title: "pass@k before and after", what: "Chance that one of k samples is right, first and last evaluation.", kind: "passk", y: ".3~p" },
  { id: "entropy", part: "entropy", wide: true, title: "Entropy", what: "Nats a token, at the sampling temperature, before each update.", tall: true, onset: true, zero: true, lines: [line("entropy", "entropy", "main")] },
  { id: "entropy-outcome", part: "entropy", title: "Entropy by outcome", what: "Of right and of wrong completions.", zero: true, tall: true, lines: [line("entropy/correct", "right", "good"), line("entropy/wrong", "wrong", "bad")] },
  { id: "entropy-sign", part: "entropy", title: "Entropy by sign of the advantage", what: "Under a quantile, negative means failures on easy prompts only.", zero: true, lines: [line("entropy/positive_advantage", "positive", "good"), line("entropy/negative_advantage", "negative", "bad"), line("entropy/zero_advantage", "zero", "third")] },
  { id: "regimes", part: "advantages", title: "Regimes over time", what: "Share of groups: hard (pass rate at most 1 - K), easy, flat (all equal).", kind: "area", y: ".3~p", lines: [line("regime/hard_frac", "hard", "fifth"), line("regime/easy_frac", "easy", "main"), line("regime/flat_frac", "flat", "third")] },
  { id: "zero", part: "advantages", title: "Completions with advantage 0", what: "Among mixed groups: work that an exact update may skip.", y: ".3~p", range: [0, 1], lines: [line("advantage/zero_frac_mixed", "zero advantage", "main")] },
  { id: "signs", part: "advantages", title: "Signs of the advantages", what: "Share of the update's completions.", y: ".3~p", lines: [line("advantage/positive_frac", "positive", "good"), line("advantage/negative_frac", "negative", "bad")] },
  { id: "flat", part: "advantages", title: "Groups with equal rewards", what: "All right or all wrong among the sampled: nothing to compare.", y: ".3~p", zero: true, lines: [line("frac_reward_zero_std", "flat groups", "main")] },
  { id: "clip", part: "update", title: "Clipped tokens", what: "Share of the update's tokens whose clipped branch is active.", y: ".3~p", zero: true, lines: [line("clip_ratio/high_mean", "above (raising)", "good"), line("clip_ratio/low_mean", "below (lowering)", "bad")] },
  { id: "grad", part: "update", title: "Gradient norm", what: "Before clipping: mean and largest over a step's updates.", zero: true, lines: [line("grad_norm", "mean", "main"), line("grad_norm_max", "largest", "third")] },
  { id: "kept", part: "update", title: "Tokens that went through the update", what: "The rest had advantage 0 and could be left out.", y: ".3~p", range: [0, 1], lines: [line("tokens/kept_frac", "tokens kept", "main")] },
  { id: "gap", part: "update", title: "Sampler against trainer", what: "Largest difference of log-probs for the same tokens, in nats.", log: true, y: ".0e", lines: [line("logprob_gap_max", "largest gap", "main")] },
  { id: "length", part: "length", title: "Completion length", what: "In tokens.", zero: true, lines: [line("completions/mean_length", "mean", "main"), line("completions/max_length", "longest", "third")] },
  { id: "cut", part: "length", title: "Cut off at the token limit", what: "Share of completions.", y: ".3~p", zero: true, lines: [line("completions/clipped_ratio", "cut off", "main")] },
  { id: "seconds", part: "time", title: "Time by phase", what: "Seconds a step.", kind: "area", lines: [line("seconds/sample", "sampling", "main"), line("seconds/grade", "grading", "fourth"), line("seconds/update", "update", "fifth")] },
  { id: "tokens", part: "time", title: "Tokens a step", what: "Sampled, and of those that went through the update.", zero: true, lines: [line("tokens/sampled", "sampled", "main"), line("tokens/updated", "updated", "fifth")] },
  { id: "doubt", part: "tokens", from: "tokens", title: "Words of doubt and pass rate", what: "Share of completions with a word such as wait or perhaps, beside the pass rate of the same completions.", y: ".3~p", zero: true, lines: [line("words_frac", "words of doubt", "fifth"), line("pass_rate", "pass rate", "main")] },
  { id: "diversity", part: "tokens", from: "tokens", title: "Diversity of the high-entropy tokens", what: "How many different tokens the fifth with the highest entropy amounts to.", zero: true, lines: [line("effective", "different tokens", "main")] },
  { id: "alike", part: "tokens", from: "tokens", title: "Where the entropy lies", what: "Share of the entropy in the fifth of the tokens with most of it; share of that fifth that is one of its two commonest tokens.", y: ".3~p", range: [0, 1], lines: [line("top_share", "entropy in the top 20%", "main"), line("two_most_frac", "two commonest tokens", "fourth")] },
  { id: "covariance", part: "tokens", from: "tokens", title: "Covariance of log-prob and advantage", what: "Mean over recorded tokens. Positive: likely tokens are reinforced, which lowers entropy in the paper's identity.", lines: [line("covariance", "covariance", "main")] },
];

const theme = () => document.documentElement.dataset.theme === "dark" ? "dark" : "light";
const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const armColour = (i) => ARM_COLOURS[theme()][i % 8];
const roleColour = (role) => ROLE_COLOURS[theme()][role];
const faded = (hex, alpha) => `rgba(${[1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16)).join(",")},${alpha})`;
/** The columns that a chart draws: one value a step, or one for some steps in a row (chart.from names them). */
const columns = (run, chart) => run[chart.from || "series"];
const has = (run, key, chart) => (columns(run, chart)[key] || []).some((x) => x !== null);

/** Mean, lowest and highest of one metric over the runs of an arm, step by step. */
function merged(runs, key, chart) {
  const at = new Map();
  for (const run of runs) {
    const series = columns(run, chart);
    series.step.forEach((step, i) => {
      const value = (series[key] || [])[i];
      if (value === null || value === undefined) return;
      if (!at.has(step)) at.set(step, []);
      at.get(step).push(value);
    });
  }
  const steps = [...at.keys()].sort((a, b) => a - b);
  const of = (f) => steps.map((step) => f(at.get(step)));
  return { steps, mean: of((v) => v.reduce((a, b) => a + b) / v.length), low: of((v) => Math.min(...v)), high: of((v) => Math.max(...v)) };
}

/** A trace that only stands in the legend. */
const KEY_ONLY = () => ({ x: [null], y: [null], mode: "lines", hoverinfo: "skip" });

function lineTraces(chart, arms) {
  const single = arms.length === 1, traces = [];
  arms.forEach((arm, a) => chart.lines.forEach((spec, s) => {
    const runs = arm.runs.filter((run) => has(run, spec.key, chart));
    if (!runs.length) return;
    const m = merged(runs, spec.key, chart);
    const colour = single ? roleColour(spec.role) : armColour(arm.index);
    const name = single ? spec.name : chart.lines.length > 1 ? `${arm.label}, ${spec.name}` : arm.label;
    if (runs.length > 1) {
      const edge = { x: m.steps, mode: "lines", line: { width: 0 }, hoverinfo: "skip", showlegend: false };
      traces.push({ ...edge, y: m.low }, { ...edge, y: m.high, fill: "tonexty", fillcolor: faded(colour, 0.16) });
    }
    traces.push({
      x: m.steps, y: m.mean, name, mode: m.steps.length > 1 ? "lines" : "markers",
      line: { color: colour, width: 2, dash: single ? "solid" : DASHES[s % 4] }, marker: { color: colour },
      showlegend: single ? chart.lines.length > 1 : false, hovertemplate: `%{y:${chart.y || ".4~g"}}`,
    });
  }));
  // several runs take the colours, so the dash tells which quantity a line is
  if (!single && chart.lines.length > 1 && traces.length) chart.lines.forEach((spec, s) => traces.push({
    ...KEY_ONLY(), name: spec.name, line: { color: css("--faint"), dash: DASHES[s % 4], width: 2 },
  }));
  return traces;
}

const columnsOf = (arms) => innerWidth < 760 ? 1 : arms.length === 4 ? 2 : Math.min(3, arms.length);

function areaTraces(chart, arms) {
  const traces = [];
  arms.forEach((arm, a) => chart.lines.forEach((spec) => {
    const runs = arm.runs.filter((run) => has(run, spec.key, chart));
    if (!runs.length) return;
    const m = merged(runs, spec.key, chart), colour = roleColour(spec.role), axis = a ? String(a + 1) : "";
    traces.push({
      x: m.steps, y: m.mean, name: spec.name, stackgroup: `arm${a}`, mode: "lines", xaxis: "x" + axis, yaxis: "y" + axis,
      line: { width: 0.5, color: colour }, fillcolor: faded(colour, 0.55), legendgroup: spec.name,
      showlegend: a === 0, hovertemplate: `%{y:${chart.y || ".3~g"}}`,
    });
  }));
  return traces;
}

function evalTraces(chart, arms) {
  const traces = [];
  for (const arm of arms) arm.runs.forEach((run, r) => {
    const points = run.evals.filter((e) => typeof e[chart.key] === "number");
    if (!points.length) return;
    const colour = arms.length === 1 ? roleColour("main") : armColour(arm.index);
    const known = points.every((e) => typeof e[chart.key + "_low"] === "number");
    traces.push({
      x: points.map((e) => e.step), y: points.map((e) => e[chart.key]), mode: "lines+markers", showlegend: false,
      name: arm.runs.length > 1 ? `${arm.label}, seed ${run.seed ?? r}` : arm.label,
      line: { color: colour, width: arm.runs.length > 1 ? 1.3 : 2 }, marker: { color: colour, size: 6 }, hovertemplate: `%{y:${chart.y}}`,
      error_y: known ? {
        symmetric: false, array: points.map((e) => e[chart.key + "_high"] - e[chart.key]),
        arrayminus: points.map((e) => e[chart.key] - e[chart.key + "_low"]), color: faded(colour, 0.55), thickness: 1.3, width: 3,
      } : undefined,
    });
  });
  return traces;
}

/** pass@k curves of one evaluation: every key eval/pass@<number>. */
const passKeys = (e) => Object.keys(e).filter((k) => /^eval\/pass@\d+$/.test(k) && typeof e[k] === "number").sort((a, b) => a.slice(10) - b.slice(10));

function passkTraces(chart, arms) {
  const traces = [];
  for (const arm of arms) {
    const first = arm.runs.map((run) => run.evals[0]).filter(Boolean), last = arm.runs.map((run) => run.evals[run.evals.length - 1]).filter(Boolean);
    const colour = arms.length === 1 ? roleColour("main") : armColour(arm.index);
    [[first, "before", "dot"], [last, "after", "solid"]].forEach(([evals, when, dash]) => {
      if (!evals.length || (when === "after" && last.every((e, i) => e === first[i]))) return;
      const keys = passKeys(evals[0]), mean = (key) => evals.reduce((sum, e) => sum + e[key], 0) / evals.length;
      const whiskers = evals.length === 1 && keys.some((k) => typeof evals[0][k + "_low"] === "number");
      traces.push({
        x: keys.map((k) => +k.slice(10)), y: keys.map(mean), name: arms.length === 1 ? when : `${arm.label}, ${when}`, mode: "lines+markers",
        line: { color: when === "before" && arms.length === 1 ? roleColour("third") : colour, dash, width: 2 }, marker: { size: 6 },
        showlegend: arms.length === 1, hovertemplate: "%{y:.1%}",
        error_y: whiskers ? { symmetric: false, thickness: 1.2, width: 3,
          array: keys.map((k) => (evals[0][k + "_high"] ?? evals[0][k]) - evals[0][k]), arrayminus: keys.map((k) => evals[0][k] - (evals[0][k + "_low"] ?? evals[0][k])) } : undefined,
      });
    });
  }
  if (arms.length > 1 && traces.length) [["before", "dot"], ["after", "solid"]].forEach(([name, dash]) => traces.push({ ...KEY_ONLY(), name, line: { color: css("--faint"), dash, width: 2 } }));
  return traces;
}

const BUILDERS = { eval: evalTraces, passk: passkTraces, area: areaTraces };
const tracesOf = (chart, arms) => (BUILDERS[chart.kind] || lineTraces)(chart, arms);

function layoutOf(chart, arms, traces) {
  const axis = { gridcolor: css("--grid"), linecolor: css("--line"), zeroline: false, tickfont: { size: 11 }, automargin: true };
  const layout = {
    margin: { l: 44, r: 12, t: 8, b: 34 }, paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
    font: { family: "system-ui, sans-serif", size: 12, color: css("--soft") }, hovermode: "x unified",
    hoverlabel: { bgcolor: css("--card"), bordercolor: css("--line"), font: { color: css("--ink"), size: 12 } },
    modebar: { bgcolor: "rgba(0,0,0,0)", color: css("--faint"), activecolor: css("--accent") },
    legend: { orientation: "h", traceorder: "normal", y: 1.02, yanchor: "bottom", x: 0, font: { size: 11.5 } }, shapes: [], annotations: [],
    xaxis: { ...axis, title: { text: chart.kind === "passk" ? "k" : "step", standoff: 6, font: { size: 11 } }, hoverformat: "d", dtick: traces.every((t) => !(t.x[t.x.length - 1] > 10)) ? 1 : undefined },
    yaxis: { ...axis, tickformat: chart.y, rangemode: chart.zero ? "tozero" : "normal", range: chart.range, type: chart.log ? "log" : "linear", nticks: 6, dtick: chart.log ? "D2" : undefined },
  };
  if (chart.kind === "passk") Object.assign(layout.xaxis, { type: "log", tickvals: [...new Set(traces.flatMap((t) => t.x))].filter((k) => k !== null) });
  if (chart.kind === "area" && arms.length > 1) {
    const columns = columnsOf(arms);
    layout.grid = { rows: Math.ceil(arms.length / columns), columns, pattern: "independent", ygap: 0.35, xgap: 0.12 };
    arms.forEach((arm, a) => {
      const n = a ? String(a + 1) : "";
      layout["xaxis" + n] = { ...layout.xaxis, matches: a ? "x" : undefined };
      layout["yaxis" + n] = { ...layout.yaxis, matches: a ? "y" : undefined };
      layout.annotations.push({ text: arm.safeLabel, xref: `x${n} domain`, yref: `y${n} domain`, x: 0, y: 1.0, yanchor: "bottom", xanchor: "left", showarrow: false, font: { size: 11 } });
    });
    Object.assign(layout.margin, { t: 44 });
    Object.assign(layout.legend, { yref: "container", y: 0.99, yanchor: "top" });
  }
  if (chart.onset) for (const arm of arms) for (const run of arm.runs) if (run.verdict.onset !== null) {
    const colour = arms.length === 1 ? roleColour("bad") : armColour(arm.index);
    layout.shapes.push({ type: "line", x0: run.verdict.onset, x1: run.verdict.onset, yref: "paper", y0: 0, y1: 1, line: { color: colour, width: 1.2, dash: "dot" } });
    if (layout.annotations.length < 4) layout.annotations.push({ x: run.verdict.onset, yref: "paper", y: 1, yanchor: "top", xanchor: "left", text: ` ${run.verdict.kind} from step ${run.verdict.onset}`, showarrow: false, font: { size: 11, color: colour } });
  }
  return layout;
}

/** One sentence for people who cannot see the chart. */
function described(chart, traces) {
  const told = traces.filter((t) => t.name && t.y.length && t.y[0] !== null).slice(0, 8).map((t) => `${t.name}: ${(+t.y[0]).toPrecision(3)} to ${(+t.y[t.y.length - 1]).toPrecision(3)}`);
  return `${chart.title}. ${told.join("; ")}`;
}

function drawAll(arms) {
  for (const chart of CHARTS) {
    const box = document.getElementById("chart-" + chart.id);
    if (!box) continue;
    const traces = tracesOf(chart, arms);
    box.closest(".chart-card").hidden = !traces.length && chart.id !== "pass1";
    if (!traces.length) { Plotly.purge(box); box.textContent = "not recorded"; box.className = "chart empty"; continue; }
    if (chart.kind === "area" && arms.length > 1) {
      box.style.height = `${200 * Math.ceil(arms.length / columnsOf(arms)) + 70}px`;
      box.closest(".chart-card").classList.add("wide");
    }
    box.setAttribute("aria-label", described(chart, traces));
    Plotly.react(box, traces, layoutOf(chart, arms, traces), {
      displaylogo: false, displayModeBar: true, modeBarButtons: [["zoom2d", "pan2d", "resetScale2d", "toImage"]],
      toImageButtonOptions: { format: "svg", filename: "qae-" + chart.id },
    });
    scalable(box);
  }
}

const fit = new ResizeObserver((entries) => requestAnimationFrame(() => {
  for (const { target } of entries) if (target.data && target.clientWidth && target.clientWidth !== target._fullLayout?.width) Plotly.relayout(target, { width: target.clientWidth, height: target.clientHeight }).then(scalable);
}));
/** A view box lets the print style shrink a chart to its column without drawing it again. */
function scalable(box) {
  const { width, height } = box._fullLayout;
  box.querySelectorAll(".main-svg").forEach((svg) => svg.setAttribute("viewBox", `0 0 ${width} ${height}`));
}

/** Cards for the charts that have data, made once. */
function placeCharts(arms) {
  for (const chart of CHARTS) {
    const part = document.getElementById("charts-" + chart.part);
    if (!part) continue;
    const card = document.createElement("div"), title = document.createElement("h3"), what = document.createElement("p"), box = document.createElement("div");
    card.className = `card chart-card${chart.tall ? " tall" : ""}${chart.wide ? " wide" : ""}`;
    title.textContent = chart.title; what.textContent = chart.what; what.className = "what";
    fit.observe(box);
    box.className = "chart"; box.id = "chart-" + chart.id; box.setAttribute("role", "img");
    card.append(title, what, box);
    part.append(card);
  }
}

// One plot per metric, drawn when it comes into sight, for this run and those that the reader adds.
"use strict";
(() => {
  const plots = document.getElementById("plots");
  if (!plots) return;
  const value = id => document.getElementById(id).value;
  const COLOURS = ["#2a78d6", "#d9541e", "#189c6c", "#a774cb", "#b07900", "#e0508a", "#7b8794", "#0b9aa6"];
  const STEPS = Array.from({length: 46}, (_, n) => [1, 2, 5][n % 3] * 10 ** Math.floor(n / 3)); // no tick stands between two steps
  const known = new Map();
  // Values that hardly differ get an axis around them, or uPlot finds no ticks and draws nothing.
  function range(low, high) {
    if (low == null || high == null) return [0, 1];
    const size = Math.max(Math.abs(low), Math.abs(high));
    if (high - low <= size * 1e-6) return [low - (size || 10) / 10, high + (size || 10) / 10];
    return uPlot.rangeNum(low, high, 0.1, false);
  }
  // As many digits as tell the ticks of an axis apart.
  function digits(_, ticks, axis, space, step) {
    const size = Math.max(...ticks.map(Math.abs)), places = Math.min(12, Math.max(0, 1 - Math.floor(Math.log10(step || 1))));
    const text = v => size && (size < 1e-3 || size >= 1e7) ? Number(v.toPrecision(3)).toExponential() : String(Number(v.toFixed(places)));
    return ticks.map(v => v == null ? "" : v === 0 ? "0" : text(v));
  }
  // Failures and resizes are lines from top to bottom.
  function mark(plot, marks) {
    const {ctx, bbox} = plot;
    ctx.save();
    ctx.strokeStyle = getComputedStyle(document.documentElement).getPropertyValue("--critical").trim();
    ctx.setLineDash([4, 4]);
    for (const [place] of marks) {
      const x = plot.valToPos(place, "x", true);
      if (x < bbox.left || x > bbox.left + bbox.width) continue;
      ctx.beginPath(); ctx.moveTo(x, bbox.top); ctx.lineTo(x, bbox.top + bbox.height); ctx.stroke();
    }
    ctx.restore();
  }
  // Values between two gaps, through which no line goes. A value that is undefined is none: another run has one there.
  function lone(row) {
    const places = [...row.keys()].filter(at => row[at] !== undefined);
    return places.filter((at, n) => row[at] !== null && (row[places[n - 1]] ?? null) === null && (row[places[n + 1]] ?? null) === null);
  }
  async function draw(figure) {
    const along = value("axis"), others = value("with").split(",").map(name => name.trim()).filter(Boolean);
    const query = new URLSearchParams({name: figure.dataset.name, axis: along, smoothing: value("smoothing"), strength: value("strength") || 2, with: others.join(",")});
    const answer = await fetch(plots.dataset.source + "?" + query);
    if (!answer.ok) return;
    const {runs, steps, raw, smooth, odd, low, marks, end} = await answer.json();
    const wanted = document.getElementById("log").checked, logarithmic = wanted && raw.some(each => each.some(v => v > 0));
    const seen = rows => rows.map(row => row.map(v => v === null ? undefined : typeof v === "string" || (logarithmic && v <= 0) ? null : v));
    const ink = getComputedStyle(document.documentElement).getPropertyValue("--quiet").trim(), line = getComputedStyle(document.documentElement).getPropertyValue("--line").trim();
    const axis = {stroke: ink, grid: {stroke: line, width: 1}, ticks: {stroke: line, width: 1}};
    const at = figure.querySelector(".plot");
    known.get(figure)?.destroy();
    const told = (_, v) => v == null ? "" : v.toPrecision(5);
    const shown = seen(raw), finite = shown.map(row => row.filter(v => v != null)), points = shown.map(lone);
    const lines = (label, n) => ({label, stroke: COLOURS[n % 8], width: 1.5, points: {show: false, filter: () => points[n]}, value: told});
    const bold = smooth.length ? runs.map((run, n) => ({...lines(run + ", smoothed", n), width: 2.5, points: {show: false}})) : [];
    known.set(figure, new uPlot({
      width: Math.max(240, at.clientWidth), height: 220,
      scales: {
        x: {time: false, ...(steps.length === 1 ? {range: [steps[0] - 1, steps[0] + 1]} : steps.at(-1) < end ? {range: [steps[0], end]} : {})}, // one point, in the middle
        y: logarithmic ? {distr: 3} : {range: (_, low, high) => range(low, high)},
      },
      axes: [{...axis, ...(along === "step" ? {incrs: STEPS} : {}), ...(steps.length === 1 ? {splits: steps} : {})}, {...axis, size: 84, ...(logarithmic ? {} : {values: digits})}], hooks: {draw: [plot => mark(plot, marks)]},
      series: [{label: along === "time" ? "seconds" : along}, ...runs.map((run, n) => ({...lines(run, n), alpha: smooth.length ? 0.4 : 1})), ...bold],
    }, [steps, ...shown, ...seen(smooth)], at));
    const missing = runs.flatMap((run, n) => [[odd[n], "not finite"], [logarithmic ? low[n] : 0, "not above 0"]].filter(([count]) => count)
      .map(([count, what]) => `${runs.length > 1 ? run + ": " : ""}${count} value${count > 1 ? "s" : ""} ${what}`));
    if (wanted && !logarithmic) missing.push("no value above 0, so the axis is linear");
    const unknown = others.filter(name => !runs.includes(name));
    if (unknown.length) missing.push("not shown: " + unknown.join(", "));
    const said = runs.map((run, n) => {
      const known = finite[n], text = value => String(Number(value.toPrecision(5)));
      return (runs.length > 1 ? run + ": " : "") + (known.length ? `${text(known.at(-1))} at the end, from ${text(Math.min(...known))} to ${text(Math.max(...known))}` : "no value");
    });
    figure.querySelector(".said").textContent = [...said, ...missing].join("; ");
    at.setAttribute("role", "img");
    at.setAttribute("aria-label", said.join("; "));
    figure.dataset.ready = "1";
  }
  const seen = new Set();
  const observer = new IntersectionObserver(entries => {
    for (const {target, isIntersecting} of entries) {
      if (!isIntersecting) seen.delete(target); else if (!seen.has(target)) { seen.add(target); draw(target); }
    }
  });
  const figures = [...plots.querySelectorAll("figure")];
  figures.forEach(figure => observer.observe(figure));
  const again = () => seen.forEach(draw);
  const controls = document.getElementById("controls");
  controls.addEventListener("change", again);
  controls.addEventListener("submit", event => { event.preventDefault(); again(); });
  document.getElementById("filter").addEventListener("input", event => figures.forEach(figure => { figure.hidden = !figure.dataset.name.includes(event.target.value); }));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", again);
  addEventListener("resize", () => known.forEach((plot, figure) => plot.setSize({width: Math.max(240, figure.querySelector(".plot").clientWidth), height: 220})));
  document.addEventListener("rolemesh:metrics", event => { if (event.detail !== plots.dataset.size) { plots.dataset.size = event.detail; again(); } });
})();

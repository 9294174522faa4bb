// The canvas of lanes: asks the server for the pieces of a window of time and of ranks, and draws them. Below the ranks
// lie the loads of their nodes and of engines, as areas.
"use strict";
(() => {
  const canvas = document.getElementById("lanes"), context = canvas.getContext("2d");
  const ROW = 26, LEFT = innerWidth < 600 ? 84 : 130, TOP = 24, COUNT = 40;
  const style = name => getComputedStyle(document.documentElement).getPropertyValue("--" + name).trim();
  let data = null, view = null, first = 0, asked = 0, timer = 0, drag = null, chosen = null;
  const words = JSON.parse(canvas.dataset.words), named = phase => words[phase] || phase;
  const seconds = us => us < 1 ? "0 s" : us >= 1.728e11 ? (us / 8.64e10).toFixed(1) + " days" : us >= 7.2e9 ? (us / 3.6e9).toFixed(1) + " h" : us >= 1e8 ? (us / 6e7).toFixed(1) + " min" : us >= 1e6 ? (us / 1e6).toPrecision(4) + " s" : us >= 1e3 ? (us / 1e3).toPrecision(4) + " ms" : Math.round(us) + " µs";
  const clock = (us, every) => {
    const whole = Math.floor(us / 1e6), two = n => String(n).padStart(2, "0");
    const digits = every >= 1e6 ? 0 : Math.min(6, Math.ceil(6 - Math.log10(every)));
    const rest = digits ? (us / 1e6 % 1).toFixed(digits).slice(1) : "";
    if (data.length < 1e8) return (whole + rest) + " s";
    const hours = Math.floor(whole / 3600), minutes = Math.floor(whole / 60) % 60;
    return (hours ? hours + ":" + two(minutes) : minutes) + ":" + two(whole % 60) + rest;
  };
  const width = () => canvas.clientWidth - LEFT;
  function short(name) { // keeps the rank's number
    const fits = text => context.measureText(text).width <= LEFT - 10, end = name.lastIndexOf("/") < 0 ? name.length : name.lastIndexOf("/");
    for (let most = end; ; most--) { const text = name.slice(0, most) + (most < end ? "…" : "") + name.slice(end); if (fits(text) || most < 2) return text; }
  }
  const x = t => LEFT + (t - view[0]) / (view[1] - view[0]) * width();

  const say = text => { document.getElementById("piece").textContent = text || "\u00a0"; };
  const rounded = n => String(Number(n.toPrecision(3)));
  const amount = (n, unit) => { // 1.3 cores, 12 GB, 3.4 MB/s, 54 %
    if (!unit) return rounded(n * 100) + " %";
    if (unit === "cores") return rounded(n);
    const size = unit[0] === "B" ? Math.max(0, ["", "k", "M", "G", "T"].findLastIndex((_, at) => n >= 1e3 ** at)) : 0;
    return rounded(n / 1e3 ** size) + " " + (size ? "kMGT"[size - 1] : "") + unit;
  };
  const whole = (unit, full) => !unit ? "" : (unit === "B" || unit === "cores" ? " of " : ", most ") + amount(full, unit);
  const load_words = ([name, what, , unit, full], [begin, d, n]) => `${name}: ${what} ${amount(n, unit)}${whole(unit, full)} · ${seconds(d)}, at ${seconds(begin)}`;
  const words_of = (name, [begin, d, phase, op, edge, step, restart]) => `${name}: ${named(phase)} ${data.ops[op] || ""} ${data.edges[edge] || ""}${step >= 0 ? " · step " + step : ""} · ${seconds(d)}, at ${seconds(begin)}${restart ? " · after restart " + restart : ""}`;

  async function load() {
    const number = ++asked;
    const query = new URLSearchParams({first, count: COUNT, columns: Math.max(200, Math.round(width()))});
    if (view) { query.set("since", Math.max(0, Math.floor(view[0]))); query.set("until", Math.max(1, Math.ceil(view[1]))); }
    const answer = await fetch(canvas.dataset.source + "?" + query);
    if (!answer.ok || number !== asked) return;
    data = await answer.json();
    document.getElementById("lanes-page").hidden = data.total === 0;
    document.getElementById("no-lanes").hidden = data.total > 0;
    document.querySelectorAll("#controls [data-rows]").forEach(button => { button.hidden = data.total <= COUNT; });
    if (!view) view = [0, Math.max(1, data.length)];
    document.getElementById("marks").replaceChildren(...data.marks.map(([t, , kind, text]) => {
      const item = document.createElement("li"), name = document.createElement("b");
      name.className = "mark " + kind; name.textContent = "at " + seconds(t);
      item.append(name, " " + text);
      return item;
    }));
    draw();
    canvas.dataset.ready = "1";
  }
  const loads = () => document.getElementById("loads").checked ? data.loads : [];
  const rows = () => data.lanes.length + loads().length;
  function later() { clearTimeout(timer); timer = setTimeout(load, 120); }

  function draw() {
    if (!data || !view) return;
    const ratio = devicePixelRatio || 1, tall = TOP + Math.max(1, rows()) * ROW + 6;
    canvas.style.height = tall + "px";
    canvas.width = canvas.clientWidth * ratio; canvas.height = tall * ratio;
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, canvas.clientWidth, tall);
    context.font = "12px system-ui, sans-serif"; context.textBaseline = "middle";
    const colours = {}, colour = name => colours[name] ??= style(name) || style("engine");
    const quiet = style("quiet"), ink = style("fg");
    axis(tall, quiet);
    context.save(); context.beginPath(); context.rect(LEFT, 0, width(), tall); context.clip();
    data.lanes.forEach(([, pieces], at) => {
      for (const [t, d, phase, op, , step] of pieces) {
        const left = x(t), wide = Math.max(0.6, d / (view[1] - view[0]) * width());
        if (left > canvas.clientWidth || left + wide < LEFT) continue;
        context.fillStyle = colour(phase);
        context.fillRect(left, TOP + at * ROW + 4, wide, ROW - 8);
        if (wide > 70 && phase === "computing") {
          context.fillStyle = style("on-" + phase);
          const label = data.ops[op] || "", short = label.slice(label.indexOf(".") + 1), number = step >= 0 ? " · " + step : "";
          const fits = [label + number, short + number, short].find(each => context.measureText(each).width < wide - 8);
          if (fits) context.fillText(fits, Math.max(left, LEFT) + 4, TOP + at * ROW + ROW / 2);
        }
      }
    });
    loads().forEach(([, what, said, unit, full, parts], number) => {
      const floor = TOP + (data.lanes.length + number + 1) * ROW - 3, high = ROW - 6;
      context.fillStyle = style("link"); context.globalAlpha = 0.35;
      for (const [t, d, n] of parts) {
        const left = Math.max(LEFT, x(t)), right = Math.min(canvas.clientWidth, x(t + d)), up = full > 0 ? Math.min(1, n / full) * high : 0;
        if (right > left) context.fillRect(left, floor - up, Math.max(0.6, right - left), up);
      }
      context.globalAlpha = 1; context.fillStyle = ink;
      context.fillText(what + (said ? " " + said : whole(unit, full)), LEFT + 4, floor - high / 2);
    });
    marks(tall);
    if (document.getElementById("arrows").checked) arrows(ink);
    const piece = found();
    if (piece) {
      context.strokeStyle = style("link"); context.lineWidth = 3;
      context.strokeRect(x(piece[0]) - 1, TOP + (number() < 0 ? chosen.lane - first : data.lanes.length + number()) * ROW + 2, Math.max(4, piece[1] / (view[1] - view[0]) * width()) + 2, ROW - 4);
      context.lineWidth = 1;
    }
    context.restore();
    context.fillStyle = ink;
    [...data.lanes, ...loads()].forEach(([name], at) => context.fillText(short(name), 6, TOP + at * ROW + ROW / 2));
    document.getElementById("range").textContent = `${seconds(view[0])} to ${seconds(view[1])} of ${seconds(data.length)} since ${new Date(data.begin / 1000).toISOString().slice(0, 19).replace("T", " ")} UTC · ranks ${first + 1} to ${first + data.lanes.length} of ${data.total}${data.many ? " · zoom in for calls and arrows" : ""}`;
  }
  function axis(tall, quiet) {
    const span = view[1] - view[0], raw = span / (width() / 110), power = 10 ** Math.floor(Math.log10(raw));
    const steps = raw > 1e6 ? [1e6, 2e6, 5e6, 1e7, 2e7, 3e7, 6e7, 1.2e8, 3e8, 6e8, 1.2e9, 1.8e9, 3.6e9, 7.2e9, 1.08e10, 2.16e10, 4.32e10, 8.64e10, 1.728e11, 4.32e11, 8.64e11] : [];
    const every = steps.find(n => n >= raw) || [1, 2, 5, 10].map(n => n * power).find(n => n >= raw);
    context.fillStyle = quiet; context.strokeStyle = style("line");
    for (let t = Math.ceil(view[0] / every) * every; t < view[1]; t += every) {
      const text = clock(t, every);
      if (x(t) + 3 + context.measureText(text).width <= canvas.clientWidth) context.fillText(text, x(t) + 3, 11);
      context.beginPath(); context.moveTo(x(t), 0); context.lineTo(x(t), tall); context.stroke();
    }
  }
  function marks(tall) { // a line at the begin, and a pale band until all is as before
    for (const [t, d, kind] of data.marks) {
      context.fillStyle = context.strokeStyle = style(kind === "resize" ? "link" : "critical"); context.lineWidth = 2;
      context.globalAlpha = 0.15; context.fillRect(x(t), TOP - 8, d / (view[1] - view[0]) * width(), tall);
      context.globalAlpha = 1; context.beginPath(); context.moveTo(x(t), TOP - 8); context.lineTo(x(t), tall); context.stroke();
    }
    context.lineWidth = 1;
  }
  function arrows(ink) {
    context.strokeStyle = ink; context.globalAlpha = 0.55;
    for (const [from, left, to, arrived] of data.arrows) {
      if (arrived < view[0] || left > view[1]) continue;
      const y1 = TOP + from * ROW + ROW / 2, y2 = TOP + to * ROW + ROW / 2, x1 = x(left), x2 = x(arrived), m = Math.max(8, (x2 - x1) / 2);
      context.beginPath(); context.moveTo(x1, y1); context.bezierCurveTo(x1 + m, y1, x2 - m, y2, x2, y2); context.stroke();
      context.beginPath(); context.moveTo(x2, y2); context.lineTo(x2 - 5, y2 - 3); context.lineTo(x2 - 5, y2 + 3); context.fillStyle = ink; context.fill();
    }
    context.globalAlpha = 1;
  }
  function zoom(factor, at) {
    const middle = view[0] + (at ?? 0.5) * (view[1] - view[0]), end = Math.max(1, data.length);
    const span = Math.min(end, Math.max(100, (view[1] - view[0]) * factor));
    place(middle - (at ?? 0.5) * span, span);
  }
  function place(begin, span) {
    begin = Math.max(0, Math.min(begin, Math.max(1, data.length) - span));
    view = [begin, begin + span]; draw(); later();
  }
  const share = event => Math.max(0, Math.min(1, (event.offsetX - LEFT) / width()));
  canvas.addEventListener("wheel", event => { if (!data) return; event.preventDefault(); zoom(event.deltaY > 0 ? 1.25 : 0.8, share(event)); }, {passive: false});
  canvas.addEventListener("pointerdown", event => { if (data) { drag = [event.clientX, view[0]]; canvas.setPointerCapture(event.pointerId); } });
  canvas.addEventListener("pointerup", () => { drag = null; });
  canvas.addEventListener("pointermove", event => {
    if (!data) return;
    if (drag) { const span = view[1] - view[0]; place(drag[1] - (event.clientX - drag[0]) / width() * span, span); return; }
    const at = Math.floor((event.offsetY - TOP) / ROW), row = data.lanes[at], load = loads()[at - data.lanes.length], t = view[0] + share(event) * (view[1] - view[0]);
    const within = ([begin, d]) => begin <= t && t < begin + d, piece = row && row[1].find(within), part = load && load[5].find(within);
    const near = data.marks.findLast(([begin]) => Math.abs(x(begin) - event.offsetX) < 4);
    say(near ? "at " + seconds(near[0]) + ": " + near[3] : piece ? words_of(row[0], piece) : part ? load_words(load, part) : "");
  });
  // What the keys have chosen: the number of a lane, and a time in it. Its piece is the one at that time, or the next one.
  // The numbers of loads follow those of the ranks.
  const number = () => chosen ? chosen.lane - data.total : -1; // of the chosen load, negative for a rank
  const lane = () => chosen && (number() < 0 ? data.lanes[chosen.lane - first] : loads()[number()]);
  const pieces = () => lane() ? lane()[number() < 0 ? 1 : 5] : [];
  const found = () => pieces().find(([begin, d]) => chosen.at < begin + d);
  function choose(next, at) {
    chosen = {lane: Math.max(0, Math.min(next, data.total + loads().length - 1)), at};
    if (number() >= 0) { said(); return; }
    const page = Math.floor(chosen.lane / COUNT) * COUNT;
    if (page !== first) { first = page; load().then(said); return; }
    said();
  }
  function said() {
    draw();
    const piece = found();
    say(piece ? (number() < 0 ? words_of(lane()[0], piece) : load_words(lane(), piece)) : lane() ? lane()[0] + ": no piece in this window" : "");
  }
  async function along(by) {
    const all = pieces(), piece = found(), next = all.indexOf(piece) + by, span = view[1] - view[0];
    if (by < 0 ? next >= 0 : next < all.length) {
      const [begin, d] = all[next];
      chosen.at = begin;
      if (begin < view[0] || begin + Math.min(d, span) > view[1]) place(begin - span / 2, span);
      said();
    } else if (by < 0 ? view[0] > 0 : view[1] < data.length) { // the window has no more: move it
      place(view[0] + by * span / 2, span);
      clearTimeout(timer);
      await load();
      chosen.at = by > 0 ? Math.max(view[0], piece ? piece[0] + piece[1] : chosen.at) : piece ? piece[0] - 1 : view[0];
      said();
    }
  }
  canvas.addEventListener("keydown", event => {
    if (!data || !view || !data.total) return;
    const span = view[1] - view[0], piece = found(), at = piece ? Math.max(0, Math.min(1, (piece[0] + piece[1] / 2 - view[0]) / span)) : 0.5;
    const left = event.key === "ArrowLeft", right = event.key === "ArrowRight";
    if (event.shiftKey && (left || right)) place(view[0] + (left ? -span : span) / 5, span);
    else if (left || right) { if (lane()) along(left ? -1 : 1); else choose(first, view[0]); }
    else if (event.key === "ArrowUp" || event.key === "ArrowDown") {
      const by = event.key === "ArrowUp" ? -1 : 1;
      if (chosen) choose(chosen.lane + by, chosen.at); else choose(first, view[0]);
    }
    else if (event.key === "Home") choose(chosen?.lane ?? first, view[0]);
    else if (event.key === "End") choose(chosen?.lane ?? first, Math.max(view[0], (lane() ? pieces() : data.lanes[0][1]).findLast(([begin]) => begin < view[1])?.[0] ?? view[0]));
    else if (event.key === "+") zoom(0.5, at);
    else if (event.key === "-") zoom(2, at);
    else if (event.key === "Escape" && chosen) { chosen = null; say(""); draw(); }
    else return;
    event.preventDefault();
  });
  document.getElementById("controls").addEventListener("click", event => {
    const {zoom: factor, rows} = event.target.dataset;
    if (!data) return;
    if (factor === "all") { view = null; load(); } else if (factor) zoom(Number(factor));
    if (rows) { first = Math.max(0, Math.min(first + Number(rows) * COUNT, Math.floor((data.total - 1) / COUNT) * COUNT)); load(); }
  });
  document.getElementById("controls").addEventListener("change", draw);
  addEventListener("resize", () => { draw(); later(); });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
  load();
  document.addEventListener("rolemesh:record", event => { // the end of the record, in µs since 1970
    if (drag || !data || !view || view[1] < data.length || Number(event.detail) <= data.begin + data.length) return;
    if (view[0] === 0) view = null;
    load();
  });
})();

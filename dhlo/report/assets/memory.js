// Where memory goes: the arena over the steps of a call at the chosen sizes, and what the whole takes.

const SVG_HEIGHT = { arena: "22rem", curve: "12rem" };
let arena = null; // of the chosen level

/** Columns of the chart: steps at which a group runs or a buffer begins; others show nothing new. */
function columnsOf() {
  const steps = new Set([...entry().groups.map((g) => g.step), ...arena.buffers.map((b) => b.first)]);
  return [...steps].sort((a, b) => a - b);
}
const percent = (part, whole) => `${whole > 0 ? (100 * part) / whole : 0}%`;

function renderMemory() {
  const plan = arena.layout(chosen.env);
  const sum = (rows) => rows.reduce((s, v) => s + tensorBytes(v), 0);
  const parts = [
    ["weights", entry().constants_bytes, "c0"], ["state", entry().state_bytes, "c3"], ["arena", plan.total, "c1"],
    ["arguments", sum(entry().inputs), "c2"], ["results", sum(entry().outputs), "c5"],
  ];
  const whole = parts.reduce((s, [, n]) => s + (n || 0), 0);
  const stack = element("div", { class: "stack", role: "img", "aria-label": parts.map(([name, n]) => `${name} ${asBytes(n)}`).join(", ") });
  for (const [name, n, c] of parts.filter(([, n]) => n > 0)) {
    const bar = element("span", { class: c, ...tip(() => `${name}: ${asBytes(n)}, ${percent(n, whole).replace(/(\.\d).*%/, "$1 %")}`) });
    bar.style.setProperty("flex", `${n} 0 0`);
    stack.append(bar);
  }
  const body = byId("memory-body");
  body.replaceChildren(
    element("div", { class: "chart" },
      element("header", {}, element("b", {}, `${asBytes(whole)} in all`), element("span", { class: "soft" }, "at these sizes, for one session")),
      stack,
      element("div", { class: "legend" }, parts.map(([name, n, c]) => element("span", { class: `chip ${c}` }, `${name} ${asBytes(n)}`))),
    ),
    ...plan.segments.filter((s) => s.total > 0 || plan.segments.length === 1).map((s) => timeline(s, plan)),
    ...(plan.segments.length ? [] : [element("p", { class: "note" }, "No arena: what the groups make are results of the model.")]),
    ...(symbolsInArena().length ? [element("div", { class: "pair" }, symbolsInArena().slice(0, 4).map(curve))] : []),
  );
  markBuffers();
}

function plot(height, svg, yTicks, xTicks) {
  const y = element("div", { class: "yaxis" }, yTicks.map(([at, text]) => placed("top", at, text)));
  const x = element("div", { class: "xaxis" }, xTicks.map(([at, text]) => placed("left", at, text)));
  const made = element("div", { class: "plot" }, y, svg, x);
  svg.style.setProperty("height", height);
  return made;
}

function placed(side, at, text) {
  const made = element("span", {}, text);
  made.style.setProperty(side, `${100 * at}%`);
  return made;
}

/** Buffers of a segment as rectangles: from the step that writes one to the last that reads it, at their offsets. */
function timeline({ segment, total, live }, plan) {
  const columns = columnsOf(), width = columns.length || 1;
  const first = (step) => columns.findIndex((c) => c >= step);
  const after = (step) => {
    const at = columns.findIndex((c) => c > step);
    return at < 0 ? width : at;
  };
  const svg = element("svg:svg", { role: "img", "aria-label": `${asBytes(total)} of arena over ${plural(width, "step")}` });
  for (const k of [0.25, 0.5, 0.75]) svg.append(element("svg:line", { class: "grid", x1: "0", x2: "100%", y1: `${100 * k}%`, y2: `${100 * k}%` }));
  arena.buffers.forEach((b, n) => {
    if (b.segment !== segment || !plan.offsets.has(n) || !(plan.sizes[n] > 0)) return;
    const from = first(b.first), to = Math.max(after(b.last), from + 1), g = entry().groups[b.group];
    const says = () => [`${b.name}: ${asBytes(plan.sizes[n])} at ${asBytes(plan.offsets.get(n))}`, texts[b.bytes],
      g ? `${b.use} of ${titleOf(b.group)}` : "", `steps ${b.first} to ${b.last}`].filter(Boolean).join("\n");
    svg.append(element("svg:rect", {
      class: `buffer ${g ? colour(g.anchor) : "c7"}`, "data-group": b.group, "data-buffer": n,
      x: percent(from, width), width: percent(to - from, width),
      y: percent(total - plan.offsets.get(n) - plan.sizes[n], total), height: percent(plan.sizes[n], total),
      onclick: () => g && choose({ group: b.group }), ...tip(says),
    }));
  });
  const path = live.map(([step, bytes], k) => {
    const at = step > columns[width - 1] ? width : first(step), high = 1 - bytes / (total || 1);
    return `${k ? "H" : "M"}${at} ${k ? "V" : ""}${high}`;
  });
  svg.append(element("svg:svg", { width: "100%", height: "100%", viewBox: `0 0 ${width} 1`, preserveAspectRatio: "none" },
    element("svg:path", { class: "live", d: path.join(" ") || "M0 0" })));
  svg.append(element("svg:rect", { class: "column", y: "0", height: "100%", width: percent(1, width), "data-column": "" }));
  const most = Math.max(0, ...live.map(([, bytes]) => bytes));
  return element("div", { class: "chart", "data-segment": segment, "data-bytes": total },
    element("header", {},
      element("b", {}, `Arena${segment ? `, segment ${segment}` : ""}: ${asBytes(total)}`),
      element("span", { class: "soft" }, `${asBytes(most)} alive at once (dashed)${segment ? "; laid out when data has told its sizes" : ""}`),
      legend(arena.buffers.map((b) => entry().groups[b.group]?.anchor ?? "loops")),
    ),
    plot(SVG_HEIGHT.arena, svg, [0, 0.25, 0.5, 0.75, 1].map((k) => [1 - k, asBytes(Math.round(total * k))]),
      [[0.04, "first step"], [0.5, plural(width, "step")], [0.96, "last step"]]),
  );
}

/** Marks the chosen group's buffers and its step. */
function markBuffers() {
  const columns = columnsOf(), g = entry().groups[chosen.group];
  for (const rect of document.querySelectorAll(".buffer")) rect.classList.toggle("now", g !== undefined && Number(rect.dataset.group) === chosen.group);
  for (const bar of document.querySelectorAll("[data-column]")) {
    bar.setAttribute("visibility", g ? "visible" : "hidden");
    if (g) bar.setAttribute("x", percent(columns.indexOf(g.step), columns.length));
  }
}

function symbolsInArena() {
  const found = new Set();
  for (const b of arena.buffers) symbolsOf(b.tree, found);
  return [...chosen.env.keys()].filter((name) => found.has(name));
}

/** Arena bytes against one size, the others as chosen. */
function curve(name) {
  const { low, high } = rangeOf(name), count = 40;
  const xs = [...new Set(Array.from({ length: count + 1 }, (_, k) => Math.round(low + ((high - low) * k) / count)))];
  const ys = xs.map((x) => arena.total(new Map(chosen.env).set(name, x)));
  const top = Math.max(...ys, 1), now = chosen.env.get(name), across = Math.max(high - low, 1);
  const svg = element("svg:svg", { viewBox: "0 0 1000 1000", preserveAspectRatio: "none", role: "img", "aria-label": `arena bytes against ${name}` },
    element("svg:line", { class: "grid", x1: 0, x2: 1000, y1: 500, y2: 500 }),
    element("svg:line", { class: "live", x1: (1000 * (now - low)) / across, x2: (1000 * (now - low)) / across, y1: 0, y2: 1000 }),
    element("svg:polyline", { class: "curve", points: xs.map((x, k) => `${(1000 * (x - low)) / across},${1000 - (960 * ys[k]) / top}`).join(" ") }),
  );
  return element("div", { class: "chart" },
    element("header", {}, element("b", {}, `Arena against ${name}`), element("span", { class: "soft" }, "other sizes as chosen")),
    plot(SVG_HEIGHT.curve, svg, [[0.04, asBytes(top)], [0.5, asBytes(top / 1.92)], [1, "0"]], [[0.02, String(low)], [0.5, asCount(Math.round((low + high) / 2))], [0.97, asCount(high)]]),
  );
}

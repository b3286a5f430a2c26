// Measured groups below what the machine can do.

function renderRoofline() {
  const body = byId("roofline-body"), profile = data.profile, point = profilePoint();
  if (!profile) {
    body.replaceChildren(element("p", { class: "note" }, "Not measured. ",
      element("code", {}, "dhlo bench MODEL --shape ... --explain --save-profile profile.json"), " measures each group, and ",
      element("code", {}, "dhlo inspect MODEL --html report.html --profile profile.json"), " shows it here."));
    return;
  }
  if (!point) {
    body.replaceChildren(element("p", { class: "note" }, `The profile is of ${profile.entry ? `entry ${profile.entry}, ` : ""}level ${profile.level || "(the only one)"}.`));
    return;
  }
  const rows = point.groups.filter((r) => r.seconds > 0);
  const drawn = rows.filter((r) => r.flops > 0 && r.bytes > 0);
  const everything = rows.reduce((s, r) => s + r.seconds, 0);
  const select = element("select", { "aria-label": "Measured at", onchange: (e) => choose({ point: Number(e.target.value) }) },
    profile.points.map((p, k) => element("option", { value: k, selected: k === chosen.point }, p.label)));
  const use = element("button", { type: "button", onclick: () => choose({ env: new Map([...chosen.env, ...Object.entries(point.sizes).filter(([n]) => chosen.env.has(n))]) }) }, "Use these sizes above");
  body.replaceChildren(
    element("div", { class: "chart" },
      element("header", {}, element("b", {}, `${asTime(everything)} in kernels at `), select, use,
        element("span", { class: "soft" }, `${plural(profile.threads, "thread")} of ${profile.machine}`)),
      element("div", { class: "pair" }, roofChart(drawn, profile.ceilings, everything), kernelTable(rows, everything)),
      legend(drawn.map((r) => entry().groups[r.group]?.anchor ?? "loops")),
      element("p", { class: "note" }, `A point is a group; its area is its share of the time. ${plural(rows.length - drawn.length, "group")} without arithmetic, or whose sizes hang on data, stand in the table alone.`),
    ),
  );
  markPoints();
}

/** Both axes in powers of ten: FLOP per byte, GFLOP/s. */
function roofChart(rows, ceilings, everything) {
  const W = 800, H = 460, left = 58, bottom = 36, top = 16, right = 14;
  const flat = [["f32", ceilings.f32_gflops], ["bf16", ceilings.bf16_gflops]].filter(([, v], k) => v > 0 && (k === 0 || v > 1.05 * ceilings.f32_gflops));
  const slopes = [["L2", ceilings.l2_gbs], ["L3", ceilings.l3_gbs], ["memory", ceilings.dram_gbs]].filter(([, v]) => v > 0);
  const xs = rows.map((r) => r.flops / r.bytes), ys = rows.map((r) => r.flops / r.seconds / 1e9);
  const peak = Math.max(1, ...flat.map(([, v]) => v), ...ys);
  const range = (values, low, high) => [Math.log10(Math.min(low, ...values) / 1.6), Math.log10(Math.max(high, ...values) * 1.6)];
  const [x0, x1] = range(xs, 0.1, 100), [y0, y1] = range(ys, peak / 300, peak);
  const X = (v) => left + ((Math.log10(v) - x0) / (x1 - x0)) * (W - left - right);
  const Y = (v) => H - bottom - ((Math.log10(v) - y0) / (y1 - y0)) * (H - bottom - top);
  const svg = element("svg:svg", { viewBox: `0 0 ${W} ${H}`, role: "img", "aria-label": `Roofline of ${plural(rows.length, "group")}` });
  const label = (x, y, text, anchor = "middle") => element("svg:text", { class: "rooftext", x, y, "text-anchor": anchor }, text);
  for (let k = Math.ceil(x0); k <= x1; k += 1) {
    svg.append(element("svg:line", { class: "grid", x1: X(10 ** k), x2: X(10 ** k), y1: top, y2: H - bottom }), label(X(10 ** k), H - bottom + 16, String(10 ** k)));
  }
  for (let k = Math.ceil(y0); k <= y1; k += 1) {
    svg.append(element("svg:line", { class: "grid", x1: left, x2: W - right, y1: Y(10 ** k), y2: Y(10 ** k) }), label(left - 6, Y(10 ** k) + 4, String(10 ** k), "end"));
  }
  svg.append(label((left + W) / 2, H - 4, "FLOP per byte"), label(left + 6, top + 12, "GFLOP/s", "start"));
  const most = Math.max(...flat.map(([, v]) => v), 1);
  for (const [name, gbs] of slopes) {
    const from = Math.max(10 ** x0, 10 ** y0 / gbs), to = Math.min(most / gbs, 10 ** x1);
    if (from >= to) continue;
    svg.append(element("svg:line", { class: "roof", x1: X(from), y1: Y(from * gbs), x2: X(to), y2: Y(to * gbs) }));
    // Along its line, each further on than the one before, whose line may be near.
    const at = from * (to / from) ** (0.08 + 0.3 * slopes.findIndex(([n]) => n === name));
    const angle = (180 / Math.PI) * Math.atan2(Y(2 * at * gbs) - Y(at * gbs), X(2 * at) - X(at));
    const text = label(0, -5, `${name} ${Math.round(gbs)} GB/s`, "start");
    text.setAttribute("transform", `translate(${X(at)} ${Y(at * gbs)}) rotate(${angle})`);
    svg.append(text);
  }
  for (const [name, gflops] of flat) {
    const from = Math.max(10 ** x0, gflops / Math.max(...slopes.map(([, v]) => v), 1e-9));
    svg.append(element("svg:line", { class: "roof", x1: X(from), x2: W - right, y1: Y(gflops), y2: Y(gflops) }), label(W - right - 4, Y(gflops) - 6, `${name} ${Math.round(gflops)} GFLOP/s`, "end"));
  }
  rows.forEach((r, k) => {
    const g = entry().groups[r.group];
    svg.append(element("svg:circle", {
      class: `point ${g ? colour(g.anchor) : "c7"}`, "data-group": r.group, cx: X(xs[k]), cy: Y(ys[k]),
      r: 3.5 + 26 * Math.sqrt(r.seconds / everything), onclick: () => g && choose({ group: r.group }),
      ...tip(() => [g ? titleOf(r.group) : "no group", r.kernels.join(" + "),
        `${asTime(r.seconds)}, ${ys[k].toFixed(1)} GFLOP/s, ${(r.bytes / r.seconds / 1e9).toFixed(1)} GB/s`, share(r)].filter(Boolean).join("\n")),
    }));
  });
  return svg;
}
const share = (r) => (r.floor ? `${Math.round((100 * r.floor) / r.seconds)} % of the ceiling` : "");

/** Time by kernels that work together, the longest first. */
function kernelTable(rows, everything) {
  const sums = new Map();
  for (const r of rows) {
    const key = r.kernels.join(" + "), s = sums.get(key) ?? { seconds: 0, floor: 0, launches: 0, groups: 0 };
    sums.set(key, { seconds: s.seconds + r.seconds, floor: r.floor === null || s.floor === null ? null : s.floor + r.floor, launches: s.launches + r.launches, groups: s.groups + 1 });
  }
  const meter = (part) => {
    const bar = element("i");
    bar.style.setProperty("width", percent(Math.min(part, 1), 1));
    return element("span", { class: "meter" }, bar);
  };
  return element("div", { class: "tall kernels" }, element("table", { class: "plain" },
    element("thead", {}, element("tr", {}, ["kernels", "time", "share", "of the ceiling"].map((name, k) => element("th", { class: k ? "n" : null, scope: "col" }, name)))),
    element("tbody", {}, [...sums].sort(([, a], [, b]) => b.seconds - a.seconds).map(([name, s]) => element("tr", {},
      element("td", { class: "mono" }, name, element("br"), meter(s.seconds / everything)),
      element("td", { class: "n" }, asTime(s.seconds)),
      element("td", { class: "n" }, `${((100 * s.seconds) / everything).toFixed(1)} %`),
      element("td", { class: "n" }, s.floor ? `${Math.round((100 * s.floor) / s.seconds)} %` : "")))),
  ));
}

function markPoints() {
  for (const point of document.querySelectorAll(".point")) point.classList.toggle("now", Number(point.dataset.group) === chosen.group);
}

// Source lines, modules and kernels; the groups that belong to them; what is in the chosen group.

const FACETS = {
  source: { name: "Lines", separator: "/", of: (g) => [...new Set(g.lines)].map(sourceOf).filter(Boolean) },
  module: { name: "Modules", separator: ".", of: (g) => [g.module || "(the model itself)"] },
  kernel: { name: "Kernels", separator: "", of: (g, n) => kernelsOf(n) },
};
const COLUMNS = [
  { key: "number", name: "#", width: "2.9rem", number: true, sort: (n) => n, text: (n) => n },
  { key: "anchor", name: "anchor", width: "7rem", sort: (n) => entry().groups[n].anchor, text: (n) => entry().groups[n].anchor },
  { key: "module", name: "module", sort: (n) => entry().groups[n].module, text: shortModule, tailed: true, title: (n) => entry().groups[n].module },
  { key: "line", name: "line", width: "11rem", sort: lineOf, text: (n) => shortSource(lineOf(n)), title: lineOf },
  { key: "flops", name: "FLOP", width: "4.6rem", number: true, sort: (n) => value(entry().groups[n].flops),
    text: (n) => asCount(value(entry().groups[n].flops)) },
  { key: "bytes", name: "bytes", width: "5rem", number: true, sort: (n) => value(entry().groups[n].bytes),
    text: (n) => asBytes(value(entry().groups[n].bytes)) },
];
const TIMED = [
  { key: "time", name: "time", width: "5.2rem", number: true, sort: (n) => timesOfGroups().get(n)?.seconds ?? 0,
    text: (n) => (timesOfGroups().has(n) ? asTime(timesOfGroups().get(n).seconds) : "") },
];
let modulePrefix = ""; // what the modules of all groups of the entry begin with
let visible = []; // numbers of the groups that are listed, in order

function lineOf(n) {
  return sourceOf(entry().groups[n].source);
}
function shortModule(n) {
  return entry().groups[n].module.slice(modulePrefix.length);
}

/** Values of the facet with their groups: lines in the order of files and numbers, others as they come first. */
function facetValues() {
  const found = new Map();
  entry().groups.forEach((g, n) => {
    for (const v of FACETS[chosen.facet].of(g, n)) found.set(v, [...(found.get(v) ?? []), n]);
  });
  const rows = [...found];
  if (chosen.facet === "source") rows.sort(([a], [b]) => a.localeCompare(b, "en", { numeric: true }));
  return rows;
}

function renderFacets() {
  byId("facets").replaceChildren(
    ...Object.entries(FACETS).map(([key, { name }]) =>
      element("button", {
        type: "button", role: "tab", "aria-selected": String(key === chosen.facet),
        onclick: () => choose({ facet: key, filter: null }),
      }, name),
    ),
  );
  const times = timesOfGroups(), rows = facetValues(), { separator } = FACETS[chosen.facet];
  // Lines by their file's name alone, where that tells them apart.
  const files = new Set(rows.map(([v]) => v.replace(/:\d+$/, "")));
  const apart = separator === "/" && new Set([...files].map(shortSource)).size === files.size;
  const skip = separator ? commonPrefix(rows.map(([v]) => v), separator).length : 0;
  const seconds = (groups) => groups.reduce((sum, n) => sum + (times.get(n)?.seconds ?? 0), 0);
  const everything = seconds(entry().groups.map((_, n) => n));
  byId("facet").replaceChildren(
    ...rows.map(([v, groups], k) => {
      const bar = everything ? element("i") : null;
      bar?.style.setProperty("width", `${(100 * seconds(groups)) / everything}%`);
      return element("li", {
        role: "option", "data-value": v, title: v, "aria-selected": String(v === chosen.filter),
        onclick: () => choose({ filter: v === chosen.filter ? null : v }),
      }, element("span", { class: "mono" }, apart ? shortSource(v) : v.slice(skip)), element("span", { class: "soft" }, String(groups.length)), bar);
    }),
  );
  markFacet();
}

/** Marks what the chosen group belongs to. */
function markFacet() {
  const g = entry().groups[chosen.group];
  const own = new Set(g ? FACETS[chosen.facet].of(g, chosen.group) : []);
  for (const row of byId("facet").children) row.classList.toggle("now", own.has(row.dataset.value));
}

function listed() {
  const words = chosen.query.toLowerCase().split(/\s+/).filter(Boolean);
  const [key, sign] = chosen.sort;
  const column = [...COLUMNS, ...TIMED].find((c) => c.key === key);
  const rows = entry().groups.map((g, n) => n).filter((n) => {
    const g = entry().groups[n];
    if (chosen.filter !== null && !FACETS[chosen.facet].of(g, n).includes(chosen.filter)) return false;
    const all = [titleOf(n), ...g.ops, ...g.lines.map(sourceOf), ...kernelsOf(n), ...g.reads].join(" ").toLowerCase();
    return words.every((w) => all.includes(w));
  });
  const keys = new Map(rows.map((n) => [n, column.sort(n)]));
  return rows.sort((a, b) => {
    const x = keys.get(a), y = keys.get(b);
    return sign * (typeof x === "string" ? x.localeCompare(y, "en", { numeric: true }) : x - y) || a - b;
  });
}

function renderRows() {
  visible = listed();
  const columns = profilePoint() ? [...COLUMNS, ...TIMED] : COLUMNS;
  const head = columns.map((c) => {
    const sorted = chosen.sort[0] === c.key;
    const cell = element("th", { role: "columnheader", scope: "col", class: c.number ? "n" : null, "aria-sort": sorted ? (chosen.sort[1] > 0 ? "ascending" : "descending") : null },
      element("button", { type: "button", onclick: () => choose({ sort: [c.key, sorted ? -chosen.sort[1] : c.number && c.key !== "number" ? -1 : 1] }) },
        c.name + (sorted ? (chosen.sort[1] > 0 ? " ↑" : " ↓") : "")));
    if (c.width) cell.style.setProperty("width", c.width);
    return cell;
  });
  const body = visible.map((n) =>
    element("tr", { role: "row", id: `group-${n}`, "aria-selected": String(n === chosen.group), class: n === chosen.group ? "now" : null,
      onclick: () => choose({ group: n }) },
      columns.map((c) => {
        const kind = c.key === "anchor" ? `chip ${colour(c.text(n))}` : c.number ? "n" : c.tailed ? "tailed" : null;
        return element("td", { role: "gridcell", class: kind, title: c.title?.(n) }, c.tailed ? element("bdi", {}, c.text(n)) : String(c.text(n)));
      }),
    ),
  );
  byId("rows").replaceChildren(element("table", { class: "rows", role: "presentation" }, element("thead", { role: "rowgroup" }, element("tr", { role: "row" }, head)), element("tbody", { role: "rowgroup" }, body)));
  byId("found").textContent = visible.length === entry().groups.length ? plural(visible.length, "group") : `${visible.length} of ${plural(entry().groups.length, "group")}`;
  markRow();
}

function markRow() {
  const pane = byId("rows");
  for (const row of pane.querySelectorAll("tr.now")) {
    row.classList.remove("now");
    row.setAttribute("aria-selected", "false");
  }
  const row = byId(`group-${chosen.group}`);
  row?.classList.add("now");
  row?.setAttribute("aria-selected", "true");
  if (row) pane.setAttribute("aria-activedescendant", row.id);
  else pane.removeAttribute("aria-activedescendant");
  if (row) reveal(pane, row, 30);
}

const groupLink = (n) => element("button", { type: "button", class: "link", onclick: () => choose({ group: n }) }, titleOf(n));
const list = (items) => items.map((item) => element("div", {}, item));
const amount = (expression, format) =>
  `${format(value(expression))}${/^\d+$/.test(texts[expression]) ? "" : ` = ${texts[expression]}`}`;

function renderDetail() {
  const pane = byId("detail"), n = chosen.group, g = entry().groups[n];
  if (!g) {
    pane.replaceChildren(element("p", { class: "soft" }, entry().groups.length ? "Choose a group." : "The model has no groups: its results are its arguments."));
    return;
  }
  const time = timesOfGroups().get(n);
  const readers = entry().groups.flatMap((x, k) => (x.reads.includes(n) ? [k] : []));
  const buffers = level().arena.filter((b) => b.group === n);
  const fact = (name, ...what) => [element("dt", {}, name), element("dd", {}, what)];
  pane.replaceChildren(
    element("div", { class: `title chip ${colour(g.anchor)}` }, `Group ${n} · ${g.anchor}`),
    element("div", { class: "soft" }, [g.module, sourceOf(g.source)].filter(Boolean).join("  ")),
    element("h3", {}, "Results"),
    ...list(g.results.map((t) => element("code", {}, t))),
    element("h3", {}, "At these sizes"),
    element("dl", { class: "facts" },
      fact("arithmetic", amount(g.flops, asCount)),
      fact("bytes", amount(g.bytes, asBytes)),
      fact("of weights", amount(g.weight_bytes, asBytes)),
      buffers.flatMap((b) => fact(b.use === "workspace" ? "workspace" : "buffer", amount(b.bytes, asBytes))),
      time ? fact("time", `${asTime(time.seconds)}${time.floor ? `, ${Math.round((100 * time.floor) / time.seconds)} % of the ceiling` : ""}`) : [],
    ),
    element("h3", {}, "Kernels"),
    ...list(kernelsOf(n).map((k) => element("button", { type: "button", class: "link mono", onclick: () => choose({ facet: "kernel", filter: k }) },
      k + (time?.kernels.includes(k) ? " (ran)" : "")))),
    element("h3", {}, `Ops (${g.ops.length})`),
    ...linesOf(g),
    element("h3", {}, "Reads"),
    ...(g.reads.length ? list(g.reads.map((r) => (typeof r === "number" ? (entry().groups[r] ? groupLink(r) : String(r)) : element("code", {}, r)))) : [element("span", { class: "soft" }, "nothing")]),
    element("h3", {}, "Read by"),
    ...(readers.length ? list(readers.map(groupLink)) : [element("span", { class: "soft" }, "no group: a result of the model, or state")]),
  );
  pane.scrollTop = 0;
}

/** The group's ops under the source lines that they come from, equal ones in a row counted. */
function linesOf(g) {
  const out = [];
  let k = 0;
  while (k < g.ops.length) {
    let end = k;
    while (end < g.ops.length && g.lines[end] === g.lines[k]) end += 1;
    const names = [];
    for (const op of g.ops.slice(k, end).map((o) => o.replace(/^dhlo\./, ""))) {
      if (names.length && names[names.length - 1][0] === op) names[names.length - 1][1] += 1;
      else names.push([op, 1]);
    }
    const line = sourceOf(g.lines[k]);
    out.push(
      line ? element("button", { type: "button", class: "link mono", onclick: () => choose({ facet: "source", filter: line }) }, line)
        : element("span", { class: "soft" }, "made by the compiler"),
      element("div", { class: "ops mono" }, names.map(([op, n]) => (n > 1 ? `${op} ×${n}` : op)).join(", ")),
    );
    k = end;
  }
  return out;
}

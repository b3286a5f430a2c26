// The page: sizes, overview and contract; what is chosen, also in the address, and what is drawn anew when it changes.

const ITEM_BYTES = { bool: 1, int8: 1, uint8: 1, int16: 2, uint16: 2, float16: 2, bfloat16: 2, int32: 4, uint32: 4, float32: 4, int64: 8, uint64: 8, float64: 8, complex64: 8, complex128: 16, float8_e4m3fn: 1, float8_e5m2: 1 };
const UNBOUNDED = 4096; // where a slider ends whose size has no bound
const tensorBytes = (v) => v.dims.reduce((n, d) => n * value(d), ITEM_BYTES[v.dtype] ?? 1);

/** The range of a symbol's slider, and its bounds. */
function rangeOf(name) {
  const [lo, hi] = entry().symbols[name] ?? [0, null];
  const low = Math.max(0, lo ?? 0);
  return { lo: low, hi, low, high: Math.max(low, Math.min(hi ?? Infinity, Math.max(UNBOUNDED, 4 * low))) };
}

/** Sizes to begin with: those of the profile, else the middle of each range as factors go. */
function firstSizes() {
  const used = new Set();
  for (const e of [...entry().inputs, ...entry().outputs].flatMap((v) => v.dims)) symbolsOf(trees[e], used);
  for (const g of entry().groups) for (const e of [g.flops, g.bytes]) symbolsOf(trees[e], used);
  for (const b of level().arena) symbolsOf(trees[b.bytes], used);
  const measured = profilePoint()?.sizes ?? {};
  chosen.env = new Map([...used].sort().map((name) => {
    const { low, high } = rangeOf(name);
    const middle = 2 ** Math.round(Math.log2(Math.max(1, low) * Math.max(1, high)) / 2);
    return [name, measured[name] ?? Math.max(low, Math.min(high, middle))];
  }));
}

function renderSizes() {
  // Positions go by factors, so that small sizes have room.
  const toPosition = (name, v) => {
    const { low, high } = rangeOf(name);
    return (1000 * Math.log((1 + v) / (1 + low))) / (Math.log((1 + high) / (1 + low)) || 1);
  };
  const fromPosition = (name, p) => {
    const { low, high } = rangeOf(name);
    return Math.round((1 + low) * ((1 + high) / (1 + low)) ** (p / 1000)) - 1;
  };
  byId("sizes").replaceChildren(...[...chosen.env].map(([name, v]) => {
    const { lo, hi, low, high } = rangeOf(name);
    const bounds = `${lo} to ${hi ?? "any"}`;
    const set = (n) => choose({ env: new Map(chosen.env).set(name, n) });
    return element("div", { class: "size", "data-symbol": name }, element("b", { title: `${name}: ${bounds}` }, name),
      element("input", { type: "range", min: 0, max: 1000, step: "any", value: toPosition(name, v), "aria-label": `${name}, ${bounds}`,
        "aria-valuetext": String(v),
        oninput: (e) => set(Math.max(low, Math.min(high, fromPosition(name, Number(e.target.value))))),
        onkeydown: (e) => {
          const step = { ArrowRight: 1, ArrowUp: 1, ArrowLeft: -1, ArrowDown: -1, PageUp: 16, PageDown: -16 }[e.key];
          if (!step) return;
          e.preventDefault();
          set(Math.max(lo, Math.min(hi ?? Infinity, chosen.env.get(name) + step)));
        } }),
      element("input", { type: "number", min: lo, max: hi, value: v, "aria-label": name,
        onchange: (e) => set(Math.max(lo, Math.min(hi ?? 2 ** 48, Math.round(Number(e.target.value)) || 0))) }));
  }));
  showSizes(toPosition);
  showSizes.toPosition = toPosition;
}

/** Moves sliders and numbers to the chosen sizes without making them anew: one of them may have the focus. */
function showSizes(toPosition = showSizes.toPosition) {
  for (const row of byId("sizes").children) {
    const v = chosen.env.get(row.dataset.symbol), [, slider, number] = row.children;
    if (Math.round(Number(slider.value)) !== Math.round(toPosition(row.dataset.symbol, v)) && document.activeElement !== slider || !slider.matches(":active")) slider.value = toPosition(row.dataset.symbol, v);
    slider.setAttribute("aria-valuetext", String(v));
    if (number.value !== String(v)) number.value = v;
  }
}

function renderTiles() {
  const plan = arena.layout(chosen.env), groups = entry().groups;
  const sum = (key) => groups.reduce((s, g) => s + (value(g[key]) || 0), 0);
  const tiles = [
    [String(groups.length), groups.length === 1 ? "group" : "groups", `of ${plural(groups.reduce((n, g) => n + g.ops.length, 0), "op")}`],
    [String(new Set(level().launches).size), new Set(level().launches).size === 1 ? "kernel" : "kernels", `at ${plural(level().launches.length, "launch site")}`],
    [asBytes(entry().constants_bytes), "weights", entry().state_bytes ? `state ${asBytes(entry().state_bytes)}` : "no state"],
    [asBytes(plan.total), "arena", `${asBytes(plan.peak)} alive at once`],
    [asCount(sum("flops")), "floating-point operations", "of all groups"],
    [asBytes(sum("bytes")), "read and written", "by all groups"],
  ];
  if (profilePoint()) tiles.push([asTime(profilePoint().groups.reduce((s, r) => s + r.seconds, 0)), "in kernels", `measured at ${profilePoint().label}`]);
  byId("tiles").replaceChildren(...tiles.map(([number, name, more]) => element("div", { class: "tile" }, element("b", {}, number), element("span", {}, name), element("br"), element("span", {}, more))));
}

function renderContract() {
  const dims = (v) => v.dims.map((d) => texts[d]).join(", ");
  const here = (v) => v.dims.map((d) => (Number.isFinite(value(d)) ? value(d) : "?")).join(" × ") || "scalar";
  const table = (title, rows) => [element("h3", {}, title), element("div", { class: "tall" }, element("table", { class: "plain" },
    rows.map((v) => element("tr", {}, element("td", {}, v.name), element("td", { class: "mono" }, `${v.dtype}[${dims(v)}]`), element("td", { class: "n" }, here(v)), element("td", { class: "n soft" }, asBytes(tensorBytes(v)))))))];
  const states = Object.entries(entry().states);
  const sizes = Object.entries(entry().symbols);
  const checks = entry().checks.filter((c) => !["rank", "dtype", "min", "max", "size"].includes(c.kind));
  byId("contract-body").replaceChildren(
    element("div", {}, table("Arguments", entry().inputs), table("Results", entry().outputs),
      states.length ? [element("h3", {}, "State, kept by a session"), element("div", { class: "tall" }, element("table", { class: "plain" }, states.map(([name, s]) => element("tr", {}, element("td", {}, name), element("td", { class: "mono" }, `${s.dtype}[${s.shape.join(", ")}]`), element("td", { class: "n soft" }, asBytes(s.bytes))))))] : []),
    element("div", {}, sizes.length ? [element("h3", {}, "Sizes"), element("table", { class: "plain" }, sizes.map(([name, [lo, hi]]) => element("tr", {}, element("td", { class: "mono" }, name), element("td", {}, `${lo ?? "any"} to ${hi ?? "any"}`))))] : [],
      element("h3", {}, "Checked at every call, beside ranks, dtypes and ranges"),
      checks.length ? element("div", { class: "tall" }, element("ul", { class: "checks" }, checks.map((c) => element("li", {}, c.text)))) : element("span", { class: "soft" }, "nothing else")),
    element("div", {}, element("h3", {}, "The file"), element("dl", { class: "facts" },
      [["made by", entry().producer], ...entry().levels.map((l, n) => [n ? "" : "for", `${l.name || "one CPU"}${n === entry().taken ? " (taken by this machine)" : ""}: ${l.cpu_features || "any"}`]), ...Object.entries(data.facts)].map(([k, v]) => [element("dt", {}, k), element("dd", {}, v)])),
      entry().quantised.length ? [element("h3", {}, "Constants of products"), element("div", { class: "tall" }, element("table", { class: "plain" }, entry().quantised.map((q) => element("tr", {}, element("td", {}, q.name), element("td", { class: "mono" }, q.format), element("td", { class: "n soft" }, asBytes(q.after))))))] : []),
  );
}

function renderChoices() {
  const pick = (name, options, now, change) => options.length > 1 ? [element("label", {}, `${name} `, element("select", { onchange: (e) => change(e.target.value) }, options.map(([v, text]) => element("option", { value: v, selected: v === now }, text))))] : [];
  byId("choices").replaceChildren(
    ...pick("Entry", Object.keys(data.entries).map((n) => [n, n]), chosen.entry, (v) => choose({ entry: v })),
    ...pick("CPU", entry().levels.map((l, n) => [String(n), l.name || "one CPU"]), String(chosen.level), (v) => choose({ level: Number(v) })),
  );
  byId("name").replaceChildren(entry().name, element("small", {}, entry().producer));
}

/** Everything of an entry or a level. */
function renderAll() {
  arena = new Arena(level(), trees);
  modulePrefix = commonPrefix(entry().groups.map((g) => g.module), ".");
  firstSizes();
  renderChoices();
  renderSizes();
  renderFacets();
}
function renderAtSizes() {
  renderTiles();
  renderContract();
  renderRows();
  renderDetail();
  renderMemory();
}

/** Changes what is chosen, and draws what hangs on it. */
function choose(change, remember = true) {
  Object.assign(chosen, change);
  if ("entry" in change) Object.assign(chosen, { level: entry().taken ?? entry().levels.length - 1, group: -1, filter: null });
  if ("entry" in change || "level" in change) renderAll();
  if ("env" in change) showSizes();
  const whole = ["entry", "level", "env", "point"].some((k) => k in change);
  if (whole) renderAtSizes();
  if (["entry", "level", "point"].some((k) => k in change)) renderRoofline();
  if (!whole && ["filter", "facet", "query", "sort"].some((k) => k in change)) renderRows();
  if ("facet" in change || "filter" in change || "point" in change) renderFacets();
  if ("group" in change) {
    markRow();
    markFacet();
    renderDetail();
    markBuffers();
    markPoints();
  }
  if (remember) writeAddress();
}

/** What is chosen as the address's fragment: `#at:entry=decode&group=12&seq=128`, to be sent with the file. */
function writeAddress() {
  const parts = new URLSearchParams();
  if (Object.keys(data.entries).length > 1) parts.set("entry", chosen.entry);
  if (chosen.group >= 0) parts.set("group", chosen.group);
  for (const [name, v] of chosen.env) parts.set(`size.${name}`, v);
  history.replaceState(null, "", `#at:${parts}`);
}
function readAddress() {
  if (!location.hash.startsWith("#at:")) return;
  const parts = new URLSearchParams(location.hash.slice(4));
  if (parts.has("entry") && parts.get("entry") in data.entries) choose({ entry: parts.get("entry") }, false);
  const sizes = [...chosen.env].map(([name, v]) => {
    const { lo, hi } = rangeOf(name), given = Number(parts.get(`size.${name}`) ?? NaN);
    return [name, Number.isInteger(given) && given >= lo && given <= (hi ?? 2 ** 48) ? given : v];
  });
  const group = Number(parts.get("group") ?? chosen.group);
  choose({ env: new Map(sizes), group: entry().groups[group] ? group : -1 }, false);
}

function setTheme(dark) {
  document.documentElement.dataset.theme = dark ? "dark" : "light";
  byId("theme").textContent = dark ? "Light" : "Dark";
}

byId("theme").addEventListener("click", () => setTheme(document.documentElement.dataset.theme !== "dark"));
byId("sizes").addEventListener("submit", (e) => e.preventDefault());
byId("query").addEventListener("input", (e) => choose({ query: e.target.value }));
byId("rows").addEventListener("keydown", (e) => arrows(e, visible.length, visible.indexOf(chosen.group), (k) => choose({ group: visible[k] })));
byId("facet").addEventListener("keydown", (e) => {
  const rows = [...byId("facet").children], now = rows.findIndex((r) => r.getAttribute("aria-selected") === "true");
  arrows(e, rows.length, now, (k) => {
    choose({ filter: rows[k].dataset.value });
    reveal(byId("facet"), byId("facet").children[k]);
  });
});
document.addEventListener("keydown", (e) => {
  if (e.key === "/" && !e.target.matches("input, select")) {
    e.preventDefault();
    byId("query").focus();
  } else if (e.key === "Escape") {
    byId("query").value = "";
    choose({ query: "", filter: null });
  }
});
addEventListener("hashchange", readAddress);

setTheme(matchMedia("(prefers-color-scheme: dark)").matches);
choose({ entry: data.profile && data.profile.entry in data.entries ? data.profile.entry : chosen.entry }, false);
if (entry().groups.length) choose({ group: 0 }, false);
readAddress();

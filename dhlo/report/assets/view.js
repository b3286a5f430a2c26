// What all views share: the data, what is chosen, elements, numbers for people, the tooltip.

const data = JSON.parse(document.getElementById("data").textContent);
const trees = data.expressions.map(([, tree]) => tree);
const texts = data.expressions.map(([text]) => text);
const byId = (id) => document.getElementById(id);

/** What is chosen: entry and level of the model, sizes by symbol, a group (-1: none), a facet to filter by, a point of the profile. */
const chosen = { entry: Object.keys(data.entries)[0], level: 0, env: new Map(), group: -1, facet: "source", filter: null, query: "",
  sort: ["number", 1], point: 0 };
const entry = () => data.entries[chosen.entry];
const level = () => entry().levels[chosen.level];
const value = (expression) => evaluate(trees[expression], chosen.env);

/** An element; properties that begin with "on" are listeners, `class` and others attributes. Texts never become markup. */
function element(tag, properties = {}, ...children) {
  const made = tag.startsWith("svg:")
    ? document.createElementNS("http://www.w3.org/2000/svg", tag.slice(4))
    : document.createElement(tag);
  for (const [name, v] of Object.entries(properties)) {
    if (name.startsWith("on")) made.addEventListener(name.slice(2), v);
    else if (v !== null && v !== undefined && v !== false) made.setAttribute(name, v === true ? "" : v);
  }
  made.append(...children.flat(Infinity).filter((c) => c !== null && c !== undefined));
  return made;
}

function scaled(n, base, units, digits = 1) {
  if (!Number.isFinite(n)) return "?";
  let k = 0;
  while (Math.abs(n) >= base && k < units.length - 1) {
    n /= base;
    k += 1;
  }
  const text = k === 0 && Number.isInteger(n) ? String(n) : n.toFixed(Math.abs(n) >= 100 ? 0 : digits);
  return units[k] ? `${text} ${units[k]}` : text;
}
const asBytes = (n) => scaled(n, 1024, ["B", "KB", "MB", "GB", "TB", "PB"]);
const asCount = (n) => scaled(n, 1000, ["", "K", "M", "G", "T", "P"]);
const asTime = (s) => (s < 1e-3 ? `${(s * 1e6).toFixed(1)} µs` : s < 1 ? `${(s * 1e3).toFixed(2)} ms` : `${s.toFixed(2)} s`);
const plural = (n, word) => `${n} ${word}${n === 1 ? "" : "s"}`;

const COLOURS = ["matmul", "attention", "reduction", "convolution", "opaque", "window", "scatter", "loops"];
/** The class that gives an anchor its colour. */
function colour(anchor) {
  const known = COLOURS.indexOf(anchor);
  return `c${known >= 0 ? known : [...anchor].reduce((h, c) => (h * 31 + c.charCodeAt(0)) % 7, 0)}`;
}
const legend = (anchors) =>
  element("div", { class: "legend" }, [...new Set(anchors)].sort().map((a) => element("span", { class: `chip ${colour(a)}` }, a)));

/** Kernels that a group may launch, in order. */
function kernelsOf(group) {
  const [first, end] = level().groups[group] ?? [0, 0];
  return [...new Set(level().launches.slice(first, end))];
}
const sourceOf = (n) => (n >= 0 ? entry().sources[n] ?? "" : "");
const shortSource = (text) => text.split("/").pop();
/** What all texts begin with, up to the last separator. */
function commonPrefix(all, separator) {
  const texts = all.filter(Boolean);
  if (texts.length < 2) return "";
  let end = Math.min(...texts.map((t) => t.length));
  while (!texts.every((t) => t.slice(0, end) === texts[0].slice(0, end))) end -= 1;
  return texts[0].slice(0, texts[0].slice(0, end).lastIndexOf(separator) + 1);
}
/** What a group is called in a line. */
const titleOf = (n) => {
  const g = entry().groups[n];
  return [`group ${n}`, g.anchor, g.module, shortSource(sourceOf(g.source))].filter(Boolean).join(" · ");
};

/** The profile's point that is looked at, if the profile is of this entry and level. */
function profilePoint() {
  const p = data.profile;
  return p && p.entry === chosen.entry && p.level === level().name ? p.points[chosen.point] ?? null : null;
}
/** Seconds by group. */
function timesOfGroups() {
  const times = new Map();
  for (const row of profilePoint()?.groups ?? []) times.set(row.group, row);
  return times;
}

function tip(text) {
  const show = (x, y) => {
    const box = byId("tip");
    box.textContent = text();
    box.hidden = false;
    const { width, height } = box.getBoundingClientRect();
    box.style.left = `${Math.max(4, Math.min(x + 14, innerWidth - width - 8))}px`;
    box.style.top = `${Math.max(4, Math.min(y + 14, innerHeight - height - 8))}px`;
  };
  const hide = () => {
    byId("tip").hidden = true;
  };
  return { onpointermove: (e) => show(e.clientX, e.clientY), onpointerleave: hide };
}

/** Arrow keys, Home, End and pages move through `count` items; `move` gets the number of the one to go to. */
function arrows(event, count, now, move) {
  const steps = { ArrowDown: now + 1, ArrowUp: now - 1, Home: 0, End: count - 1, PageDown: now + 12, PageUp: now - 12 };
  if (!(event.key in steps) || count === 0 || event.altKey || event.ctrlKey || event.metaKey) return;
  event.preventDefault();
  move(Math.max(0, Math.min(count - 1, now < 0 ? 0 : steps[event.key])));
}

/** Scrolls a child into sight of its pane alone, so that the page stays where it is. */
function reveal(pane, child, head = 0) {
  const box = pane.getBoundingClientRect(), row = child.getBoundingClientRect();
  if (row.top < box.top + head) pane.scrollTop -= box.top + head - row.top;
  else if (row.bottom > box.bottom) pane.scrollTop += row.bottom - box.bottom;
}

// Size expressions, and the arena's layout at given sizes, as the host program computes them.

const divisor = (b) => (b === 0 ? 1 : b);
const modulo = (a, b) => ((a % divisor(b)) + divisor(b)) % divisor(b);
const FUNCTIONS = {
  "+": (...x) => x.reduce((a, b) => a + b, 0),
  "*": (...x) => x.reduce((a, b) => a * b, 1),
  pow: Math.pow,
  floordiv: (a, b) => (a - modulo(a, b)) / divisor(b),
  ceildiv: (a, b) => -((-a - modulo(-a, b)) / divisor(b)),
  mod: modulo,
  div: (a, b) => a / divisor(b),
  trunc: Math.trunc,
  floor: Math.floor,
  ceil: Math.ceil,
  round: (a) => (Math.abs(a % 1) === 0.5 ? 2 * Math.round(a / 2) : Math.round(a)),
  float: (a) => a,
  sqrt: Math.sqrt,
  log2: Math.log2,
  shl: (a, b) => a * 2 ** b,
  shr: (a, b) => Math.floor(a / 2 ** b),
  max: Math.max,
  min: Math.min,
  abs: Math.abs,
  eq: (a, b) => +(a === b),
  ne: (a, b) => +(a !== b),
  lt: (a, b) => +(a < b),
  le: (a, b) => +(a <= b),
  gt: (a, b) => +(a > b),
  ge: (a, b) => +(a >= b),
  and: (...x) => +x.every(Boolean),
  or: (...x) => +x.some(Boolean),
  not: (a) => +!a,
};

/** The value of a tree where `env` maps symbols to sizes; NaN where one has none, or there is no tree. */
function evaluate(tree, env) {
  if (typeof tree === "number") return tree;
  if (typeof tree === "string") return env.has(tree) ? env.get(tree) : NaN;
  if (tree === null) return NaN;
  const [name, ...args] = tree;
  if (name === "ite") return evaluate(args[evaluate(args[0], env) ? 1 : 2], env);
  return FUNCTIONS[name](...args.map((a) => evaluate(a, env)));
}

/** Adds the symbols of a tree to a set. */
function symbolsOf(tree, found) {
  if (typeof tree === "string") found.add(tree);
  else if (Array.isArray(tree)) for (const a of tree.slice(1)) symbolsOf(a, found);
  return found;
}

/** The arena of one level of an entry. Each arrangement of a segment orders its buffers; a buffer lies behind the ends of those before
 * it that live at the same time, and a call takes the arrangement that needs least. */
class Arena {
  constructor(level, trees) {
    this.buffers = level.arena.map((b) => ({ ...b, tree: trees[b.bytes] }));
    const overlap = (a, b) => a.first <= b.last && b.first <= a.last;
    this.arrangements = level.arrangements
      .filter((a) => a.order.every((n) => this.buffers[n]))
      .map((a) => ({
        ...a,
        below: a.order.map((n, i) => a.order.slice(0, i).filter((m) => overlap(this.buffers[n], this.buffers[m]))),
      }));
    this.segments = [...new Set(this.buffers.map((b) => b.segment))].sort((a, b) => a - b);
  }

  sizes(env) {
    return this.buffers.map((b) => Math.max(0, evaluate(b.tree, env)));
  }

  /** Offsets by buffer, and for each segment its bytes and those that are alive at once; the sums over all of them. */
  layout(env) {
    const sizes = this.sizes(env);
    const offsets = new Map();
    const segments = this.segments.map((segment) => {
      let best = null;
      for (const { order, below } of this.arrangements.filter((a) => a.segment === segment)) {
        const at = new Map();
        let total = 0;
        order.forEach((n, i) => {
          at.set(n, below[i].reduce((most, m) => Math.max(most, at.get(m) + sizes[m]), 0));
          total = Math.max(total, at.get(n) + sizes[n]);
        });
        if (best === null || total < best.total) best = { at, total };
      }
      for (const [n, offset] of best?.at ?? []) offsets.set(n, offset);
      return { segment, total: best?.total ?? 0, live: this.live(segment, sizes) };
    });
    const total = segments.reduce((sum, s) => sum + s.total, 0);
    const peak = segments.reduce((sum, s) => sum + Math.max(0, ...s.live.map(([, bytes]) => bytes)), 0);
    return { sizes, offsets, segments, total, peak };
  }

  /** Steps and the bytes that are alive from each on. */
  live(segment, sizes) {
    const change = new Map();
    this.buffers.forEach((b, n) => {
      if (b.segment !== segment) return;
      change.set(b.first, (change.get(b.first) ?? 0) + sizes[n]);
      change.set(b.last + 1, (change.get(b.last + 1) ?? 0) - sizes[n]);
    });
    let now = 0;
    return [...change].sort(([a], [b]) => a - b).map(([step, bytes]) => [step, (now += bytes)]);
  }

  total(env) {
    return this.layout(env).total;
  }
}

// Differences between two lists, after Myers. Pure.

const MOST = 1000; // edits, beyond which all between the common ends counts as different

// Pairs of indices [i, j] of the entries that both have, in order.
function common(a, b) {
  let start = 0;
  while (start < a.length && start < b.length && a[start] === b[start]) start += 1;
  let end = 0;
  while (end < a.length - start && end < b.length - start && a[a.length - 1 - end] === b[b.length - 1 - end]) end += 1;
  const pairs = [];
  for (let index = 0; index < start; index += 1) pairs.push([index, index]);
  pairs.push(...middle(a.slice(start, a.length - end), b.slice(start, b.length - end)).map(([i, j]) => [i + start, j + start]));
  for (let index = end; index > 0; index -= 1) pairs.push([a.length - index, b.length - index]);
  return pairs;
}

function middle(a, b) {
  const reach = new Map([[1, 0]]);
  const trace = [];
  for (let edits = 0; edits <= Math.min(MOST, a.length + b.length); edits += 1) {
    trace.push(new Map(reach));
    for (let k = -edits; k <= edits; k += 2) {
      const down = k === -edits || (k !== edits && reach.get(k - 1) < reach.get(k + 1));
      let x = down ? reach.get(k + 1) : reach.get(k - 1) + 1;
      while (x < a.length && x - k < b.length && a[x] === b[x - k]) x += 1;
      reach.set(k, x);
      if (x >= a.length && x - k >= b.length) return walkBack(trace, a.length, b.length);
    }
  }
  return [];
}

function walkBack(trace, x, y) {
  const pairs = [];
  for (let edits = trace.length - 1; edits >= 0; edits -= 1) {
    const reach = trace[edits];
    const k = x - y;
    const down = k === -edits || (k !== edits && reach.get(k - 1) < reach.get(k + 1));
    const beforeK = down ? k + 1 : k - 1;
    const beforeX = edits === 0 ? 0 : reach.get(beforeK);
    const beforeY = edits === 0 ? 0 : beforeX - beforeK;
    while (x > beforeX && y > beforeY) pairs.push([(x -= 1), (y -= 1)]);
    [x, y] = [beforeX, beforeY];
  }
  return pairs.reverse();
}

// Rows [left, right] of two lists of lines: null where one side has nothing; equal where both are the same text.
export function lineRows(a, b) {
  const rows = [];
  let [i, j] = [0, 0];
  for (const [nextI, nextJ] of [...common(a, b), [a.length, b.length]]) {
    while (i < nextI || j < nextJ) rows.push([i < nextI ? a[i++] : null, j < nextJ ? b[j++] : null]);
    if (i < a.length && j < b.length) rows.push([a[i++], b[j++]]);
  }
  return rows;
}

// Two lines that differ, each as stretches [text, differs].
export function wordStretches(left, right) {
  const split = (text) => text.match(/[\p{L}\p{N}_]+|\s+|[^\p{L}\p{N}_\s]/gu) || [];
  const [a, b] = [split(left), split(right)];
  const pairs = a.length + b.length > 6000 ? [] : common(a, b);
  const side = (words, kept) => {
    const stretches = [];
    words.forEach((word, index) => {
      const differs = !kept.has(index);
      const last = stretches[stretches.length - 1];
      if (last && last[1] === differs) last[0] += word;
      else stretches.push([word, differs]);
    });
    return stretches;
  };
  return [side(a, new Set(pairs.map(([i]) => i))), side(b, new Set(pairs.map(([, j]) => j)))];
}

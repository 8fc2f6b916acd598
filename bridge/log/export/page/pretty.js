// JSON indented without being read: numbers and strings stay as they were written.

export function prettyJson(text) {
  try {
    const value = JSON.parse(text);
    if (value === null || typeof value !== "object") return null;
  } catch {
    return null;
  }
  const out = [];
  let depth = 0;
  const line = () => "\n" + "  ".repeat(depth);
  for (const [token] of text.matchAll(/"(?:[^"\\]|\\.)*"|[{}[\],:]|[^\s"{}[\],:]+/g)) {
    if (token === "{" || token === "[") {
      depth += 1;
      out.push(token, line());
    } else if (token === "}" || token === "]") {
      depth -= 1;
      const opened = out.length >= 2 && (out[out.length - 2] === "{" || out[out.length - 2] === "[");
      if (opened) out[out.length - 1] = token;
      else out.push(line(), token);
    } else if (token === ",") out.push(",", line());
    else if (token === ":") out.push(": ");
    else out.push(token);
  }
  return out.join("");
}

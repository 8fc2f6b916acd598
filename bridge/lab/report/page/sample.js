// One sample: what the model wrote, what was made of it, and what is wrong with it.

const TAKEN = { call: "call", repair: "repaired", unknown: "call of a function that is not offered", reject: "not a call" };
const CUT = 6000; // characters of one text that are shown unasked

function sampleView(sample, known, index) {
  const view = make("section", "sample");
  const outcome = sample.status === "error" ? "error" : sample.passed ? "passed" : "failed";
  const facts = [seconds(sample.seconds), sample.status === "error" ? null : `${number(sample.input_tokens)} → ${number(sample.output_tokens)} tokens`, sample.req_id ? shorten(sample.req_id, 80) : null];
  const head = make("h3", "", `Sample ${number(sample.repeat + 1)}`, make("span", `badge ${outcome}`, outcome));
  if (sample.form !== null) {
    const form = make("span", `form ${sample.form}`, `form: ${sample.form}`);
    form.title = index.words.forms[sample.form] || "";
    head.append(form);
  }
  head.append(make("span", "note", facts.filter(Boolean).map(oneLine).join(" · ")));
  view.append(head);
  if (sample.status === "error") {
    const error = sample.error || { code: "unknown", message: "" };
    view.append(make("div", "error", make("p", "", make("code", "", oneLine(shorten(error.code || "error", 100))), make("span", "note", " a request error; it does not count")),
      putText(make("p", "message"), error.message, 2000)));
    return view;
  }
  view.append(...wrongs(sample, index));
  view.append(make("div", "beside", written(sample), made(sample, known)));
  return view;
}

// The reasons, each a sentence; then the repairs.
function wrongs(sample, index) {
  const list = make("ul", "wrongs");
  const add = (className, name, words) => list.append(make("li", className, make("code", "", oneLine(shorten(name, 60))), " ", oneLine(shorten(words, 1000))));
  if (["broken", "leaked"].includes(sample.form)) add("bad", sample.form, `${index.words.forms[sample.form]}.`);
  for (const reason of new Set(sample.rejections)) add("bad", reason, index.words.rejections[reason] || "");
  for (const [check, sentence] of sample.failed) add("bad", check, sentence);
  for (const repair of new Set(sample.repairs)) add("repaired", repair, index.words.repairs[repair] || "was repaired");
  return list.childElementCount ? [list] : [];
}

function written(sample) {
  const view = make("div", "written", make("h4", "", "As the model wrote it"));
  for (const stretches of sample.texts) {
    const text = make("pre", "raw");
    let left = CUT;
    const more = [];
    for (const stretch of stretches) {
      if (left <= 0) more.push(stretch);
      else text.append(stretchView(stretch, left));
      left -= stretch[0].length;
    }
    if (more.length) {
      const rest = more.reduce((total, [words]) => total + words.length, 0);
      const show = button(`Show ${size(rest)} more`, () => show.replaceWith(...more.map((stretch) => stretchView(stretch, CUT))), "more");
      text.append(show);
    }
    view.append(text);
  }
  if (!sample.texts.some((stretches) => stretches.length)) view.append(make("p", "empty", sample.calls.length ? "No text; the calls are native." : "Nothing."));
  return view;
}

function stretchView([words, kind, note], limit) {
  const taken = Object.hasOwn(TAKEN, kind);
  const place = make("span", taken ? `taken ${kind}` : "");
  if (taken) place.append(make("span", "caption", note ? `${TAKEN[kind]} — ${oneLine(shorten(note, 300))}` : TAKEN[kind]));
  if (words.length <= Math.max(limit, 200)) withTags(place, words, taken);
  else {
    const shown = make("span", "");
    withTags(shown, words.slice(0, limit), taken);
    const more = button(`Show all ${size(words.length)}`, () => {
      shown.replaceChildren();
      withTags(shown, words, taken);
      more.remove();
    }, "more");
    place.append(shown, more);
  }
  return place;
}

// Tags stand out; one outside of a call is a leak, or talked about. A variant may have tags of its own: <tool_call_1a2b>.
const TAG = /(<\/?tool_call\w*>?)/;

function withTags(place, words, taken) {
  words.split(TAG).forEach((piece, index) => {
    if (index % 2) place.append(make("b", taken ? "tag" : "tag stray", piece));
    else if (piece) place.append(readable(piece));
  });
}

function made(sample, known) {
  const view = make("div", "made", make("h4", "", "Called"));
  for (const call of sample.calls) view.append(callCard("call", call.name, call.arguments));
  if (!sample.calls.length) view.append(make("p", "empty", "Nothing."));
  if (known !== null) view.append(make("h4", "", "Expected"), ...expected(known.expect));
  return view;
}

function callCard(what, name, text, note) {
  const found = make("div", `part ${what}`, card(what, name, "", text));
  if (note) found.append(make("p", "note", note));
  return found;
}

function expected(expect) {
  const parts = expect.calls.map((call) => {
    const found = callCard("due", call.name, call.arguments);
    if (call.optional) found.append(make("p", "note", "optional:"), putText(make("pre", "optional"), prettyJson(call.optional) || call.optional, CUT));
    return found;
  });
  if (!expect.calls.length) parts.push(make("p", "", "No call."));
  const rules = [];
  if (expect.calls.length > 1) rules.push(expect.order === "exact" ? "in this order" : "in any order");
  for (const text of expect.contains) rules.push(`the text contains ${JSON.stringify(shorten(text, 300))}`);
  for (const text of expect.lacks) rules.push(`the text does not contain ${JSON.stringify(shorten(text, 300))}`);
  if (expect.leak === "allowed") rules.push("tags may appear in the text");
  if (rules.length) parts.push(make("p", "note", oneLine(rules.join("; "))));
  return parts;
}

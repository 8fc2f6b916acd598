// The filter bar: the options of `turnbridge log ls`, which the bridge applies. They are in the address.

import { button, byId, make } from "./dom.js";
import { FILTERS, filtersOf } from "./address.js";

const PAUSE = 300; // ms after the last key, before the list is asked for
const OUTCOMES = ["completed", "incomplete", "failed", "cancelled", "unfinished"];
const TIMES = ["10m", "1h", "24h", "7d"];
const MORE = ["until", "tool", "path", "req"];

// Names as in `turnbridge log ls`: label, and what may be written.
const ABOUT = {
  grep: ["Text in input or answer", "Filter by text in input or answer   ( / )"],
  outcome: ["Outcome", ""],
  model: ["Model", "any; gpt-5*"],
  since: ["Since", "any; 2h"],
  until: ["Until", "now; 08:30"],
  tool: ["Tool called", "any"],
  path: ["Path contains", "any"],
  req: ["Request id", "its beginning"],
};

export class Filters {
  constructor(onChange) {
    this.onChange = onChange;
    this.inputs = {};
    const form = byId("tools");
    const grep = this.input("grep", "search");
    grep.id = "filter";
    const outcome = make("select", "", new Option("any", ""), ...OUTCOMES.map((name) => new Option(name, name)));
    this.inputs.outcome = outcome;
    this.models = make("datalist");
    this.models.id = "models";
    const times = make("datalist", "", ...TIMES.map((each) => new Option(each)));
    times.id = "times";
    this.input("model").setAttribute("list", "models");
    this.input("since").setAttribute("list", "times");
    for (const name of MORE) this.input(name);
    this.more = make("div", "more", ...MORE.map((name) => labelled(name, this.inputs[name])));
    this.more.id = "morefilters";
    this.toggle = button("More", () => this.showMore(this.more.hidden));
    this.toggle.setAttribute("aria-controls", "morefilters");
    this.clear = button("Clear", () => {
      for (const control of Object.values(this.inputs)) control.value = "";
      this.changed();
      byId("filter").focus();
    });
    form.append(grep, make("div", "few", labelled("model", this.inputs.model), labelled("outcome", outcome), labelled("since", this.inputs.since), this.toggle, this.clear), this.more, this.models, times);
    form.addEventListener("submit", (event) => event.preventDefault());
    let timer = null;
    form.addEventListener("input", () => {
      clearTimeout(timer);
      timer = setTimeout(() => this.changed(), PAUSE);
    });
    grep.addEventListener("keydown", (event) => {
      if (event.key === "ArrowDown") {
        byId("list").focus();
        event.preventDefault();
      }
    });
  }

  input(name, type = "text") {
    const control = make("input");
    const [label, hint] = ABOUT[name];
    Object.assign(control, { type, name, placeholder: hint, autocomplete: "off", spellcheck: false });
    control.setAttribute("aria-label", label);
    this.inputs[name] = control;
    return control;
  }

  showMore(shown) {
    this.more.hidden = !shown;
    this.toggle.setAttribute("aria-expanded", String(shown));
  }

  // What is written in the fields.
  get query() {
    return filtersOf(new URLSearchParams(FILTERS.map((name) => [name, this.inputs[name].value.trim()])));
  }

  set query(query) {
    for (const name of FILTERS) {
      const value = query.get(name) || "";
      const control = this.inputs[name];
      if (control === document.activeElement && control.value.trim() === value) continue;
      // An outcome such as failed:CODE, from an address.
      if (name === "outcome" && value && ![...control.options].some((each) => each.value === value)) control.append(new Option(value, value));
      control.value = value;
    }
    if (MORE.some((name) => query.get(name))) this.showMore(true);
    else if (this.toggle.getAttribute("aria-expanded") === null) this.showMore(false);
    this.clear.hidden = ![...this.query].length;
  }

  offerModels(names) {
    this.models.replaceChildren(...[...names].slice(0, 200).map((name) => new Option(name)));
  }

  changed() {
    this.clear.hidden = ![...this.query].length;
    this.onChange(this.query);
  }
}

function labelled(name, control) {
  return make("label", "small", make("span", "", ABOUT[name][0]), control);
}

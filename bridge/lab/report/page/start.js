// The page: cases on one side, what came of one on the other. The address names what is open: #3/1 is row and column.

function start() {
  const index = block("index");
  index.cases.forEach((row, number) => (row.number = number));
  index.models = [...new Set(index.columns.map((column) => column.model))];
  index.categories = [...new Set(index.cases.map((row) => row.category))];
  const name = oneLine(shorten(index.suite || "Results", 200));
  document.title = `${name} – tool calls`;
  byId("title").textContent = name;
  const samples = index.columns.reduce((sum, column) => sum + column.scored + column.errors, 0);
  byId("about").textContent = [plural(samples, "sample"), index.models.length === 1 ? index.models[0] : plural(index.models.length, "model"), index.program].map(oneLine).join(" · ");
  tell(index);

  let open = null; // {row, at}
  const hash = (row, at) => `#${row.number}/${at}`;
  const go = (row, at) => {
    if (location.hash === hash(row, at)) route();
    else location.hash = hash(row, at);
  };
  const matrix = new Matrix(index, go);
  const step = (by) => {
    const shown = matrix.shown.includes(open.row) ? matrix.shown : index.cases;
    const next = shown[shown.indexOf(open.row) + by];
    if (next) go(next, open.at);
  };
  let keyed = false; // whether the column was changed from its tab, which then keeps the focus
  const route = () => {
    const found = /^#(\d+)\/(\d+)$/.exec(location.hash);
    const row = found && index.cases[Number(found[1])];
    const at = row ? Number(found[2]) : -1;
    const there = Boolean(row && row.cells[at]);
    document.body.classList.toggle("open", there);
    if (!there) {
      open = null;
      matrix.mark(null);
      byId("turn").replaceChildren(overview(index));
      return;
    }
    open = { row, at };
    matrix.mark(row, at);
    showCell(index, row, at, {
      back: () => (location.hash = ""),
      previous: () => step(-1),
      next: () => step(1),
      column: (to, byKey) => {
        keyed = Boolean(byKey);
        go(row, to);
      },
    });
    if (keyed) byId("turn").querySelector("[role=tab][aria-selected=true]").focus();
    keyed = false;
  };
  byId("title").addEventListener("click", () => (location.hash = ""));
  addEventListener("hashchange", route);
  addEventListener("keydown", (event) => {
    const typing = event.target instanceof HTMLInputElement && event.target.type === "search";
    if (event.key === "/" && !typing) {
      byId("filter").focus();
      event.preventDefault();
    } else if (event.key === "Escape" && !typing && document.body.classList.contains("open")) {
      location.hash = "";
      if (matrix.focused !== null) matrix.focused.focus();
    }
  });
  route();
}

function tell(index) {
  const told = [...index.missed, ...index.notes];
  if (index.left_out) told.push(`${plural(index.left_out, "sample")} left out of this page, to keep it small enough for a browser; all of them are counted.`);
  if (!told.length) return;
  byId("told").hidden = false;
  byId("told").replaceChildren(...told.map((sentence) => make("p", "", oneLine(shorten(sentence, 2000)))));
}

start();

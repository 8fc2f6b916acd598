// A list of any length: only the rows in sight exist. All rows have the same height.

import { make } from "./dom.js";

export class VirtualList {
  constructor(element, { height, row, onSelect, onDraw }) {
    this.element = element;
    this.height = height;
    this.row = row;
    this.onSelect = onSelect;
    this.onDraw = onDraw;
    this.count = 0;
    this.selected = -1;
    this.space = make("div", "space");
    this.space.setAttribute("role", "presentation");
    element.replaceChildren(this.space);
    element.addEventListener("scroll", () => this.draw(), { passive: true });
    element.addEventListener("keydown", (event) => this.key(event));
    element.addEventListener("click", (event) => {
      // By its place: a row that was drawn again between press and release is not the target of the click.
      this.select(Math.floor((event.clientY - this.space.getBoundingClientRect().top) / this.height));
    });
    new ResizeObserver(() => this.draw()).observe(element);
  }

  // `above`: rows that are new above those in sight, which therefore stay where they are.
  setCount(count, above) {
    this.count = count;
    this.space.style.height = `${count * this.height}px`;
    if (above && this.element.scrollTop > 0) this.element.scrollTop += above * this.height;
    this.draw(true);
  }

  draw(redraw) {
    const top = this.element.scrollTop;
    const first = Math.max(0, Math.floor(top / this.height) - 6);
    const last = Math.min(this.count, Math.ceil((top + this.element.clientHeight) / this.height) + 6);
    if (!redraw && first === this.first && last === this.last) return;
    this.first = first;
    this.last = last;
    const rows = [];
    for (let index = first; index < last; index += 1) {
      const row = this.row(index);
      row.dataset.index = String(index);
      row.id = `${this.element.id}-${index}`;
      row.setAttribute("role", "option");
      row.setAttribute("aria-selected", String(index === this.selected));
      row.setAttribute("aria-setsize", String(this.count));
      row.setAttribute("aria-posinset", String(index + 1));
      row.style.top = `${index * this.height}px`;
      row.style.height = `${this.height}px`;
      rows.push(row);
    }
    this.space.replaceChildren(...rows);
    this.point();
    if (this.onDraw) this.onDraw();
  }

  select(index, quietly) {
    if (index < 0 || index >= this.count) return;
    this.selected = index;
    this.show(index);
    this.draw(true);
    if (!quietly) this.onSelect(index);
  }

  show(index) {
    const top = index * this.height;
    const { scrollTop, clientHeight } = this.element;
    if (top < scrollTop) this.element.scrollTop = top;
    else if (top + this.height > scrollTop + clientHeight) this.element.scrollTop = top + this.height - clientHeight;
  }

  point() {
    const here = this.selected >= this.first && this.selected < this.last;
    if (here) this.element.setAttribute("aria-activedescendant", `${this.element.id}-${this.selected}`);
    else this.element.removeAttribute("aria-activedescendant");
  }

  key(event) {
    const page = Math.max(1, Math.floor(this.element.clientHeight / this.height) - 1);
    const steps = { ArrowDown: 1, ArrowUp: -1, PageDown: page, PageUp: -page, Home: -this.count, End: this.count };
    if (!(event.key in steps) || event.ctrlKey || event.metaKey || event.altKey || !this.count) return;
    event.preventDefault();
    this.select(Math.min(this.count - 1, Math.max(0, this.selected + steps[event.key])));
  }
}

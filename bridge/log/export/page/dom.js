// Elements, made from text alone: nothing here or elsewhere in the page reads recorded content as markup.

const SVG = "http://www.w3.org/2000/svg";

export function make(tag, className, ...children) {
  const element = document.createElement(tag);
  if (className) element.className = className;
  element.append(...children.filter((child) => child !== null && child !== undefined && child !== ""));
  return element;
}

export function makeSvg(tag, attributes, text) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, String(value));
  if (text !== undefined) element.textContent = text;
  return element;
}

export function button(label, onClick, className) {
  const element = make("button", className || "", label);
  element.type = "button";
  element.addEventListener("click", onClick);
  return element;
}

export const byId = (id) => document.getElementById(id);

// A block of recorded data. It is parsed again each time: the page keeps no second copy of a large log.
export function block(id) {
  const element = byId(id);
  return element === null ? null : JSON.parse(element.textContent);
}

// Every visible text whose colour stands out from its ground by less than 4.5 to 1.
(() => {
  const channels = (colour) => (colour.match(/[\d.]+/g) || []).map(Number);
  const light = ([r, g, b]) => {
    const linear = [r, g, b].map((value) => value / 255).map((value) => (value <= 0.03928 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4));
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2];
  };
  const ground = (element) => {
    for (let node = element; node; node = node.parentElement) {
      const colour = channels(getComputedStyle(node).backgroundColor);
      if (colour.length === 3 || colour[3] > 0.99) return colour;
    }
    return [255, 255, 255];
  };
  const poor = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const element = walker.currentNode.parentElement;
    if (!walker.currentNode.textContent.trim() || !element.getClientRects().length || element.closest("script, noscript")) continue;
    const style = getComputedStyle(element);
    const svg = element.closest("svg");
    const [a, b] = [light(channels(svg ? style.fill : style.color)), light(ground(svg ? svg.parentElement : element))];
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (ratio < 4.5) poor.push([walker.currentNode.textContent.slice(0, 40), element.className, ratio.toFixed(2)].map(String));
  }
  return poor;
})()

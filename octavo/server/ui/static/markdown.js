// A small part of Markdown as elements: fenced code, headings, lists, `code`, **bold** and *italics*.
// Text only ever becomes text nodes, so nothing a model writes can be markup.
import { element } from "./api.js";

const INLINE = /(`[^`\n]+`|\*\*[^*\n]+\*\*|\*[^*\s][^*\n]*\*)/;

export function render(text) {
  const parts = document.createDocumentFragment();
  text.split(/^```/m).forEach((part, index) => {
    if (index % 2) parts.append(element("pre", "", part.replace(/^[^\n]*\n/, "")));
    else part.split(/\n{2,}/).filter((each) => each.trim()).forEach((each) => parts.append(...blocks(each)));
  });
  return parts;
}

function blocks(text) {
  const heading = /^(#{1,4}) (.*)$/m.exec(text);
  if (heading && heading.index === 0) {
    const rest = text.slice(heading[0].length).trim();
    return [inline("h" + (heading[1].length + 2), heading[2]), ...(rest ? blocks(rest) : [])];
  }
  const lines = text.trim().split("\n");
  if (lines.every((line) => /^\s*([-*]|\d+\.) /.test(line))) {
    const list = element(/^\s*\d/.test(lines[0]) ? "ol" : "ul");
    list.append(...lines.map((line) => inline("li", line.replace(/^\s*([-*]|\d+\.) /, ""))));
    return [list];
  }
  return [inline("p", text)];
}

function inline(name, text) {
  const made = element(name);
  for (const part of text.split(INLINE)) {
    if (!INLINE.test(part)) made.append(part);
    else if (part[0] === "`") made.append(element("code", "", part.slice(1, -1)));
    else if (part.startsWith("**")) made.append(element("strong", "", part.slice(2, -2)));
    else made.append(element("em", "", part.slice(1, -1)));
  }
  return made;
}

// Elements of the page. Text goes in as text, never as HTML.

const byId = (id) => document.getElementById(id);

/* A name that may be wrapped between its words. */
const broken = (name) =>
  name.split(/(?<=[_/])/).flatMap((part, number) => (number ? [element("wbr"), part] : [part]));

const button = (text, onclick) => element("button", { type: "button", onclick }, text);

/* An element with attributes, listeners (`onclick`) and children; empty children are left out. */
function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else if (value === true) made.setAttribute(key, "");
    else if (known(value) && value !== false) made.setAttribute(key, value);
  }
  made.append(...children.filter((child) => known(child) && child !== ""));
  return made;
}

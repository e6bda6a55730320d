// Elements of the page. Text goes in as text, never as HTML.

const byId = (id) => document.getElementById(id);

/* A name that may be wrapped between its words. */
const broken = (name) =>
  name.split(/(?<=[_/])/).flatMap((part, number) => (number ? [element("wbr"), part] : [part]));

const button = (text, onclick, more = {}) =>
  element("button", { type: "button", onclick, ...more }, ...broken(text));

/* An element, `tag.class`, with children; empty children are left out. A plain object before
   them holds attributes and listeners (`onclick`). */
function element(name, ...children) {
  const [tag, ...classes] = name.split(".");
  const made = document.createElement(tag);
  if (classes.length) made.className = classes.join(" ");
  const attributes = children[0]?.constructor === Object ? children.shift() : {};
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else if (value === true) made.setAttribute(key, "");
    else if (known(value) && value !== false) made.setAttribute(key, value);
  }
  made.append(...children.filter((child) => known(child) && child !== ""));
  return made;
}

/* A box that scrolls sideways, also by keys. */
const scrolled = (label, ...children) =>
  element("div.wide", { tabindex: "0", role: "region", "aria-label": label }, ...children);

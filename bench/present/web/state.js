// What the reader has chosen, kept in the address's fragment so that a link leads back to it:
// #section?subject=...&mesh=...

const state = { section: "", choices: new URLSearchParams(), writing: 0 };

/* What the address says. One that names a section alone leaves the choices; is that all? */
function readState() {
  const [section, query] = location.hash.slice(1).split(/\?(.*)/s);
  state.section = section;
  if (query === undefined) {
    choose({});
    return true;
  }
  state.choices = new URLSearchParams(query);
  return false;
}

const chosen = (key, otherwise = "") => state.choices.get(key) ?? otherwise;

/*
 * Change choices; what is empty is left out. The address follows after `wait` milliseconds: browsers
 * take only so many in a while.
 */
function choose(changes, section = state.section, wait = 0) {
  for (const [key, value] of Object.entries(changes)) {
    if (known(value) && value !== "" && value !== false) state.choices.set(key, value);
    else state.choices.delete(key);
  }
  state.section = section;
  clearTimeout(state.writing);
  if (wait) state.writing = setTimeout(writeAddress, wait);
  else writeAddress();
}

function writeAddress() {
  if (state.section || state.choices.size)
    history.replaceState(null, "", address(state.section, state.choices));
}

function address(section, choices) {
  const query = new URLSearchParams(choices).toString();
  return `#${section}${query ? `?${query}` : ""}`;
}

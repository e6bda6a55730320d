// The reader's choices, kept in the fragment of the address so that a link restores them:
// #section?subject=...&mesh=...

const state = { section: "", choices: new URLSearchParams(), writing: 0 };

/* Read the address; return whether it names only a section, which leaves the choices alone. */
function readState() {
  const [section, query] = location.hash.slice(1).split(/\?(.*)/s);
  state.section = section;
  if (section && query === undefined) {
    choose({});
    return true;
  }
  state.choices = new URLSearchParams(query);
  return false;
}

const chosen = (key, otherwise = "") => state.choices.get(key) ?? otherwise;

/* Change choices; empty values remove them. */
function put(choices, changes) {
  for (const [key, value] of Object.entries(changes)) {
    if (value) choices.set(key, value);
    else choices.delete(key);
  }
}

/*
 * Change the reader's choices. The address is updated after `wait` milliseconds,
 * because browsers limit how often it may change.
 */
function choose(changes, section = state.section, wait = 0) {
  put(state.choices, changes);
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

// The reader's case on the first screen: what to use for a workload, a number of devices, and the
// memory of a device.

const CASE = ["for", "on", "within"]; // Selectors, and their keys in the address.
const MOST_USED = 4; // Implementations that an answer names.

/* Whether a cell is surely behind another one. Without shared rounds, the step times decide, if
   they differ by more than the margin and the noise floor. */
function isBehind(cell, other) {
  const beside = timesBeside(cell, other);
  const negligible = [cell, other].flatMap(({ of }) => [of.margin, of.floor ?? 0]);
  return beside ? beside[1] > 1 : cell.step_s / other.step_s > 1 + Math.max(...negligible);
}

const leads = ({ of, arm }) => of.leaders.includes(arm);

/* The cells that may be the fastest, by step time: only leaders, if no leader is missing. */
function usable(cells) {
  const leaders = cells.filter(leads);
  const every = unique(cells.map(({ of }) => of)).flatMap((block) => block.leaders);
  const some = every.length && leaders.length === every.length ? leaders : cells;
  const ordered = [...some].sort((a, b) => a.step_s - b.step_s);
  return ordered.filter((cell) => cell === ordered[0] || !isBehind(cell, ordered[0]));
}

/* Bound on the ratio of any two leaders, or else of the best cell and any other. */
function widestRatio(best) {
  const [{ of }, ...others] = best;
  if (best.every((cell) => cell.of === of && leads(cell))) return of.spread ?? Infinity;
  return Math.max(1, ...others.map((cell) => timesBeside(cell, best[0])?.[2] ?? Infinity));
}

/* Bytes rounded up to two digits, so that a list of limits is short. */
function limitAbove(size) {
  const unit = 1024 ** Math.floor(Math.log(size) / Math.log(1024));
  const digit = 10 ** (Math.floor(Math.log10(size / unit)) - 1) * unit;
  return Math.ceil(Math.ceil(size / digit) * digit);
}

/* Offer the cases that have times, and answer the chosen one. */
function drawChooser() {
  const timed = CELLS.filter((cell) => cell.status === "ok" && known(cell.step_s));
  byId("chooser").hidden = unique(timed.map(({ block }) => block)).length < 2;
  if (byId("chooser").hidden) return;
  const [workload, devices, memory] = CASE.map(byId);
  fill(workload, unique(timed.map(({ of }) => of.subjectName)), chosen("for"));
  const own = timed.filter(({ of }) => of.subjectName === workload.value);
  const counts = ascending(own.map(({ of }) => of.devices));
  const telling = counts.findLast((count) => own.some(({ of }) => of.devices === count && !of.oversubscribed));
  fill(devices, counts, chosen("on", String(telling ?? counts.at(-1))));
  const sizes = own.map((cell) => cell.memory_bytes).filter((size) => size > 0);
  const limits = ascending(sizes.map(limitAbove)).slice(0, -1); // The last one excludes nothing.
  const texts = limits.map((limit) => [limit, `at most ${bytes(limit)}`]);
  fill(memory, [["", "any"], ...texts], chosen("within"));
  const cells = own.filter(({ of }) => String(of.devices) === devices.value);
  const batches = ascending(cells.map(({ of }) => of.batch));
  const uses = batches.map((batch) => {
    const where = batches.length > 1 ? ` with batch ${batch}` : "";
    return useOf(cells.filter(({ of }) => of.batch === batch), Number(memory.value), where);
  });
  byId("use").replaceChildren(...uses);
}

/* What to use among cells of one batch size on devices with `limit` bytes (0: no limit). */
function useOf(cells, limit, where) {
  const fits = cells.filter(({ memory_bytes: size }) => !limit || (known(size) && size <= limit));
  const left = cells.length - fits.length;
  const without = left ? ` Left out are ${left} of ${cells.length}, which need more memory or whose memory is unknown.` : "";
  if (!fits.length) return element("p", `Nothing fits${where}.${without}`);
  const best = usable(fits);
  const named = best.slice(0, MOST_USED);
  const more = best.length - named.length;
  const meshes = unique(cells.map(({ of }) => of.mesh));
  const links = named.flatMap((cell, place) => [
    place ? (place === named.length - 1 && !more ? " or " : ", ") : "",
    element("b", cellLink(cell, cell.name)),
    meshes.length > 1 ? ` (${cell.of.mesh})` : "",
  ]);
  const others = more ? ` or ${more} more` : "";
  const highest = widestRatio(best);
  const which = `${best.length > 2 ? "any" : "either"} of them may be the fastest`;
  const tied = best.length > 1 ? `: ${highest === 1 ? "they run the same program" : which}` : "";
  const bounded = tied && highest > 1 && highest < 2; // rounded up to a tenth of a percent
  const bound = bounded ? `within ${percent(Math.ceil(1000 * (highest - 1)) / 1000)}; ` : "";
  const ends = [Math.min, Math.max].map((end) => end(...best.map(({ step_s }) => step_s)));
  const times = unique(ends.map((end) => si(end, "s"))).join(" to ");
  return element("p", "Use ", ...links, `${others}${where}${tied} (${bound}${times} per step).${without}`);
}

/* Keeps a table body equal to a list: rows are kept by key, so that focus, selection and hover survive an update.
   Everything is set as text; no value from the fleet is ever read as markup. */

/* rows: [{key, fields: {name: text}, tones?, titles?, share?}] */
export function rowsSet(name, rows) {
  const body = document.querySelector(`[data-rows="${name}"]`);
  const template = document.querySelector(`template[data-row="${name}"]`);
  const present = new Map([...body.children].map((element) => [element.dataset.key, element]));
  let previous = null;
  for (const row of rows) {
    const element = present.get(row.key) ?? template.content.firstElementChild.cloneNode(true);
    present.delete(row.key);
    element.dataset.key = row.key;
    fill(element, row);
    const wanted = previous ? previous.nextElementSibling : body.firstElementChild;
    if (wanted !== element) body.insertBefore(element, wanted);
    previous = element;
  }
  for (const gone of present.values()) gone.remove();
  document.querySelector(`[data-full="${name}"]`).hidden = rows.length === 0;
  document.querySelector(`[data-empty="${name}"]`).hidden = rows.length > 0;
}

function fill(element, { fields, tones = {}, titles = {}, share }) {
  const field = (name) => element.querySelector(`[data-field="${name}"]`);
  for (const [name, text] of Object.entries(fields)) {
    const target = field(name);
    if (target.textContent !== text) target.textContent = text;
  }
  for (const [name, tone] of Object.entries(tones)) field(name).dataset.tone = tone;
  for (const [name, title] of Object.entries(titles)) field(name).title = title;
  if (share !== undefined) meterSet(element.querySelector("[data-meter]"), share);
}

export function meterSet(meter, share) {
  meter.firstElementChild.setAttribute("width", (Math.min(1, Math.max(0, share)) * 100).toFixed(2));
  meter.dataset.level = share >= 0.95 ? "full" : share >= 0.8 ? "high" : "normal";
}

/* What every console page has: the theme switch, and times in the viewer's zone. */
import { clockText } from "./format.js";

const theme = window.sluiceTheme;

for (const group of document.querySelectorAll("[data-theme-switch]")) {
  const buttons = [...group.querySelectorAll("[data-theme-value]")];
  const show = (value) => buttons.forEach((b) => b.setAttribute("aria-pressed", String(b.dataset.themeValue === value)));
  buttons.forEach((button) => button.addEventListener("click", () => theme.set(button.dataset.themeValue)));
  document.addEventListener("themechange", (event) => show(event.detail));
  show(theme.stored());
  group.hidden = false;
}

for (const element of document.querySelectorAll("time[datetime]")) {
  const moment = new Date(element.dateTime);
  element.textContent = clockText(moment.getTime());
  element.title = moment.toLocaleString();
}

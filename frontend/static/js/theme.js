/* Runs before the first paint, so that a stored theme never flashes. The administration keeps its choice
   ("auto", "light" or "dark", as JSON) under the same name, so one switch holds for both. */
(function () {
  "use strict";
  var KEY = "adminTheme";

  function stored() {
    try {
      var value = JSON.parse(localStorage.getItem(KEY));
      return value === "light" || value === "dark" ? value : "auto";
    } catch (error) {
      return "auto"; // storage refused, or another program's value
    }
  }

  function apply(value) {
    if (value === "auto") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = value;
    document.dispatchEvent(new CustomEvent("themechange", { detail: value }));
  }

  window.sluiceTheme = {
    stored: stored,
    set: function (value) {
      try {
        localStorage.setItem(KEY, JSON.stringify(value));
      } catch (error) {
        // Private windows may refuse storage: the choice then lasts for this page.
      }
      apply(value);
    },
  };

  document.documentElement.dataset.script = ""; // what only works with scripts shows itself
  apply(stored());
  window.addEventListener("storage", function (event) {
    if (event.key === KEY) apply(stored());
  });
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", function () {
    apply(stored());
  });
})();

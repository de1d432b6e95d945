// Runs before the first paint: the chosen theme, the mark that scripts work here, the time zone in which the portal reads
// what is typed into forms (portal/zones.py), and what may be used before the modules have come: where scripts work a
// choice has no button beside it, and would be lost.
(() => {
  const root = document.documentElement;
  root.classList.remove("no-js");
  try {
    const chosen = localStorage.getItem("theme");
    if (chosen === "light" || chosen === "dark") root.dataset.theme = chosen;
  } catch {
    // storage may be refused; then the system's theme stays
  }
  const zone = Intl.DateTimeFormat().resolvedOptions().timeZone;
  if (zone) document.cookie = `zone=${zone}; path=/; max-age=31536000; samesite=lax`;
  document.addEventListener("change", (event) => {
    if (event.target.matches("[data-submit-on-change]")) event.target.form.requestSubmit();
  });
})();

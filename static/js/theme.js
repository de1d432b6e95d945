// Runs before the first paint: the chosen theme, and the mark that scripts work here.
(() => {
  const root = document.documentElement;
  root.classList.remove("no-js");
  try {
    const chosen = localStorage.getItem("theme");
    if (chosen === "light" || chosen === "dark") root.dataset.theme = chosen;
  } catch {
    // storage may be refused; then the system's theme stays
  }
})();

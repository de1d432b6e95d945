// A menu with a search for <select multiple> and <select data-searchable>: type a part of a name, choose by mouse or
// keyboard. The select stays in the form, hidden, and is what is sent; without scripts it is the menu.

const MAX_SHOWN = 200;
const plain = (text) => text.normalize("NFKD").replace(/\p{M}/gu, "").toLocaleLowerCase();
let made = 0;

class Combobox {
  constructor(select) {
    this.select = select;
    this.id = `combobox-${(made += 1)}`;
    this.options = [...select.options].filter((option) => !option.disabled);
    this.active = -1;
    this.#build();
    this.#listen();
    this.#show();
  }

  #build() {
    const { select } = this;
    this.root = document.createElement("div");
    this.root.className = "combobox";
    this.field = document.createElement("div");
    this.field.className = "combobox-field";
    this.input = document.createElement("input");
    Object.assign(this.input, { type: "text", autocomplete: "off", spellcheck: false, id: `${this.id}-input` });
    const label = document.querySelector(`label[for="${CSS.escape(select.id)}"]`);
    const attributes = {
      role: "combobox", "aria-expanded": "false", "aria-controls": this.id, "aria-autocomplete": "list",
      "aria-label": label?.textContent.trim() ?? select.getAttribute("aria-label") ?? "Choose",
      "aria-describedby": select.getAttribute("aria-describedby") ?? "",
    };
    for (const [name, value] of Object.entries(attributes)) if (value) this.input.setAttribute(name, value);
    this.list = document.createElement("ul");
    Object.assign(this.list, { id: this.id, className: "combobox-list", hidden: true });
    this.list.setAttribute("role", "listbox");
    this.list.setAttribute("aria-label", attributes["aria-label"]);
    if (select.multiple) this.list.setAttribute("aria-multiselectable", "true");
    this.field.append(this.input);
    this.root.append(this.field, this.list);
    select.after(this.root);
    select.hidden = true;
    if (label) label.htmlFor = this.input.id;
  }

  #listen() {
    this.field.addEventListener("mousedown", (event) => {
      if (event.target === this.input || event.target.closest("button")) return;
      event.preventDefault();
      this.input.focus();
    });
    this.input.addEventListener("focus", () => this.input.select());
    this.input.addEventListener("click", () => this.#open());
    this.input.addEventListener("input", () => this.#open());
    this.input.addEventListener("keydown", (event) => this.#key(event));
    this.root.addEventListener("focusout", (event) => {
      if (!this.root.contains(event.relatedTarget)) this.#close();
    });
    this.list.addEventListener("mousedown", (event) => {
      event.preventDefault(); // the focus stays in the field
      const item = event.target.closest("[role=option]");
      if (item) this.#choose(this.options[Number(item.dataset.index)]);
    });
    this.select.form?.addEventListener("reset", () => setTimeout(() => this.#show()));
    this.select.addEventListener("change", () => this.#show());
  }

  #key(event) {
    const steps = { ArrowDown: 1, ArrowUp: -1 };
    const items = this.list.querySelectorAll("[role=option]");
    if (event.key in steps) {
      event.preventDefault();
      if (this.list.hidden) this.#open();
      else this.#mark((this.active + steps[event.key] + items.length) % items.length);
    } else if (event.key === "Enter" && !this.list.hidden) {
      event.preventDefault();
      if (items[this.active]) this.#choose(this.options[Number(items[this.active].dataset.index)]);
    } else if (event.key === "Escape" && !this.list.hidden) {
      event.stopPropagation();
      this.#close();
    } else if (event.key === "Backspace" && this.select.multiple && !this.input.value) {
      const last = [...this.select.selectedOptions].at(-1);
      if (last) this.#toggle(last);
    }
  }

  #open() {
    const query = this.#typed();
    this.list.replaceChildren();
    const found = this.options.map((option, index) => [option, index]).filter(([option]) => plain(option.text).includes(query));
    for (const [option, index] of found.slice(0, MAX_SHOWN)) {
      const item = document.createElement("li");
      item.id = `${this.id}-${index}`;
      item.dataset.index = index;
      item.textContent = option.text.trim();
      item.setAttribute("role", "option");
      item.setAttribute("aria-selected", String(option.selected));
      this.list.append(item);
    }
    if (found.length > MAX_SHOWN || !found.length) {
      const item = document.createElement("li");
      item.className = "none";
      item.textContent = found.length ? `${found.length - MAX_SHOWN} more: type a part of the name` : "Nothing matches";
      this.list.append(item);
    }
    this.list.hidden = false;
    this.input.setAttribute("aria-expanded", "true");
    const selected = found.findIndex(([option]) => option.selected);
    this.#mark(query || this.select.multiple || selected < 0 ? 0 : Math.min(selected, MAX_SHOWN - 1));
  }

  /** What is searched for: nothing while the field shows the present choice. */
  #typed() {
    const { select, input } = this;
    return !select.multiple && input.value === (select.selectedOptions[0]?.text.trim() ?? "") ? "" : plain(input.value.trim());
  }

  #mark(index) {
    const items = this.list.querySelectorAll("[role=option]");
    items[this.active]?.classList.remove("active");
    this.active = index;
    items[index]?.classList.add("active");
    items[index]?.scrollIntoView({ block: "nearest" });
    this.input.setAttribute("aria-activedescendant", items[index]?.id ?? "");
  }

  #choose(option) {
    if (this.select.multiple) {
      this.input.value = "";
      this.#toggle(option);
      this.#open();
      return;
    }
    this.select.value = option.value;
    this.#close();
    this.#changed();
  }

  #toggle(option) {
    option.selected = !option.selected;
    this.#changed();
  }

  #changed() {
    this.select.dispatchEvent(new Event("input", { bubbles: true }));
    this.select.dispatchEvent(new Event("change", { bubbles: true }));
  }

  #close() {
    this.list.hidden = true;
    this.active = -1;
    this.input.setAttribute("aria-expanded", "false");
    this.input.removeAttribute("aria-activedescendant");
    this.#show();
  }

  /** The present choice: as chips, or as the text of the field. */
  #show() {
    if (!this.select.multiple) {
      if (this.list.hidden) this.input.value = this.select.selectedOptions[0]?.text.trim() ?? "";
      return;
    }
    if (this.list.hidden) this.input.value = "";
    for (const chip of this.field.querySelectorAll(".combobox-chip")) chip.remove();
    for (const option of this.select.selectedOptions) {
      const chip = document.createElement("span");
      chip.className = "combobox-chip";
      chip.textContent = option.text.trim();
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = "×";
      button.setAttribute("aria-label", `Remove ${option.text.trim()}`);
      button.addEventListener("click", () => {
        this.input.focus(); // before the button goes, which would close the menu
        this.#toggle(option);
      });
      chip.append(button);
      this.input.before(chip);
    }
  }
}

for (const select of document.querySelectorAll("select[multiple], select[data-searchable]")) new Combobox(select);

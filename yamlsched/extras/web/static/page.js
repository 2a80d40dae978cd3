// Refreshes what a page shows. The server sends the page without its frame, or 304 if nothing has changed; parts that
// have data-refresh and an id are replaced. It waits while the tab is hidden, a dialog is open, text is selected, or
// the focus is in a field. Without this script the page shows what it showed when it was loaded.
"use strict";

(() => {
  // What an action has led to is said once, not again after a reload or behind a bookmark; a time zone that was chosen
  // is in a cookie.
  const here = new URL(location.href);
  if (here.searchParams.has("result") || here.searchParams.has("clock")) {
    here.searchParams.delete("result");
    here.searchParams.delete("clock");
    history.replaceState(history.state, "", here);
  }
  const mine = document.getElementById("mine");
  if (mine) {
    const zone = Intl.DateTimeFormat().resolvedOptions().timeZone;
    mine.href += encodeURIComponent(zone);
    mine.textContent = `mine: ${zone}`;
    mine.parentElement.hidden = false;
  }

  // Keys: / searches, g and a letter go to a page, j and k move between the rows of lists.
  let goes = false;
  document.addEventListener("keydown", (event) => {
    const isTyping = event.target.matches("input, select, textarea");
    if (isTyping || event.ctrlKey || event.metaKey || event.altKey) return;
    const key = event.key;
    if (goes) [...document.querySelectorAll(".top nav a")].find((a) => a.textContent.toLowerCase().startsWith(key))?.click();
    goes = key === "g" && !goes;
    if (key === "/") {
      event.preventDefault();
      document.getElementById("find")?.focus();
    }
    if (key === "j" || key === "k") {
      const rows = [...document.querySelectorAll("main .list .name[href], main .list .name a")];
      const nth = rows.indexOf(document.activeElement);
      rows[key === "j" ? nth + 1 : Math.max(nth - 1, 0)]?.focus();
    }
  });

  // The box in the head offers what contains the word in it. A menu shuts when something else is clicked.
  const box = document.getElementById("find");
  box?.addEventListener("input", async () => {
    const text = box.value;
    await new Promise((resolve) => { setTimeout(resolve, 150); });
    if (text.length < 2 || text !== box.value) return;
    const answer = await fetch(`${box.form.action}?q=${encodeURIComponent(text)}`, { headers: { Accept: "application/json" } });
    const { suggestions = [] } = answer.ok ? await answer.json() : {};
    box.list.replaceChildren(...suggestions.map(([value, what]) => new Option(what, value)));
  });
  document.addEventListener("click", (event) => {
    for (const menu of document.querySelectorAll(".top details[open]")) if (!menu.contains(event.target)) menu.open = false;
  });

  // Where the browser lets a page write the clipboard, buttons copy the text of an element.
  document.documentElement.classList.toggle("scripted", Boolean(navigator.clipboard));
  document.addEventListener("click", async (event) => {
    const button = event.target.closest("[data-copy]");
    if (!button) return;
    await navigator.clipboard.writeText(document.getElementById(button.dataset.copy).textContent);
    button.classList.add("copied");
    setTimeout(() => button.classList.remove("copied"), 1500);
  });

  // Arrow keys move between the marks of a grid, which are no stops of the tab key.
  const STEPS = { ArrowRight: [0, 1], ArrowLeft: [0, -1], ArrowDown: [1, 0], ArrowUp: [-1, 0] };
  document.addEventListener("keydown", (event) => {
    const step = STEPS[event.key];
    const focused = document.activeElement;
    if (step && focused.matches(".heat-box")) return focused.querySelector(".marks a")?.focus();
    const cell = step && focused.matches(".marks a") && focused.closest("th, td");
    if (!cell) return;
    const rows = [...cell.closest("table").rows];
    let [row, column] = [rows.indexOf(cell.parentElement), cell.cellIndex];
    for (let target = cell; target;) {
      [row, column] = [row + step[0], column + step[1]];
      target = rows[row]?.cells[column];
      const link = target?.querySelector("a");
      if (link) {
        event.preventDefault();
        return link.focus();
      }
    }
  });

  // A page that says that the database is down asks again until it has something else to show.
  const isDown = document.getElementById("unavailable") !== null;
  const PERIOD_SECONDS = 10;
  const MAX_PERIOD_SECONDS = 120;
  const main = document.getElementById("main");
  const label = document.getElementById("refresh");
  if (!main || !label || !main.querySelector("[data-refresh]")) return;

  const note = document.createElement("span");
  const reload = document.createElement("a");
  const button = document.createElement("button");
  label.setAttribute("role", "status");
  reload.textContent = "reload the page";
  reload.href = location.href;
  label.append(note, reload, button);
  label.hidden = false;

  let etag = "";
  let updated = new Date();
  let failures = 0;
  let isPaused = false;
  let timer = 0;

  function show(problem, mayReload = false) {
    const time = (isDown ? new Date() : updated).toLocaleTimeString([], { hour12: false, timeZone: label.dataset.zone || undefined });
    const text = isDown ? `tried at ${time}` : problem ? `not updated since ${time}: ${problem}` : `${isPaused ? "paused at" : "updated"} ${time}`;
    if (note.textContent !== text) note.textContent = text;
    label.classList.toggle("bad", Boolean(problem) && !isDown);
    reload.hidden = !mayReload;
    button.textContent = isPaused ? "Resume" : "Pause";
  }

  function isBusy() {
    const focused = document.activeElement;
    const isTyping = focused && main.contains(focused) && focused.matches("input, select, textarea");
    const selection = document.getSelection();
    const isSelecting = selection && !selection.isCollapsed && main.contains(selection.anchorNode);
    const hasChosen = main.querySelector("input[form]:checked") !== null;
    return document.hidden || isTyping || isSelecting || hasChosen || document.querySelector("dialog[open]") !== null;
  }

  // What a reader has opened, scrolled or focused stays so. Parts of a list that grows at its top have an id, by which
  // they are found again: a new one is shut. Others are found by their place.
  function replace(old, fresh) {
    const all = (part, what) => [...part.querySelectorAll(what)];
    const pairs = (what) => {
      const places = all(old, what).filter((one) => !one.id);
      const named = new Map(all(old, what).map((one) => [one.id, one]));
      let nth = 0;
      return all(fresh, what).map((one) => [one, one.id ? named.get(one.id) : places[nth++]]);
    };
    const hadNamed = all(old, "details[id]").length > 0;
    for (const [details, before] of pairs("details")) {
      details.open = before ? before.open : details.open && !(details.id && hadNamed);
    }
    const scrolled = pairs(".scroll, .printed").filter(([, box]) => box).map(([one, box]) => [one, box.scrollLeft, box.scrollTop]);
    const focused = old.contains(document.activeElement) ? document.activeElement : null;
    const alike = (part) => all(part, focused?.localName ?? "none")
      .filter((other) => focused.id ? other.id === focused.id : other.getAttribute("href") === focused.getAttribute("href"));
    const nth = alike(old).indexOf(focused);
    old.replaceWith(fresh);
    for (const [box, left, top] of scrolled) {
      box.scrollLeft = left;
      box.scrollTop = top;
    }
    alike(fresh)[nth]?.focus({ preventScroll: true });
  }

  function apply(html) {
    const page = document.createElement("template");
    page.innerHTML = html;
    const parts = [...main.querySelectorAll("[data-refresh]")];
    const fresh = parts.map((part) => page.content.getElementById(part.id));
    const isSamePage = fresh.every(Boolean) && parts.length === page.content.querySelectorAll("[data-refresh]").length;
    if (!isSamePage) {
      main.replaceChildren(page.content);
      return;
    }
    parts.forEach((part, nth) => { if (!part.isEqualNode(fresh[nth])) replace(part, fresh[nth]); });
  }

  async function refresh() {
    if (isPaused || isBusy()) return schedule();
    try {
      const headers = { "Yamlsched-Fragment": "1" };
      if (etag) headers["If-None-Match"] = etag;
      const answer = await fetch(location.href, { headers, cache: "no-store", redirect: "manual" });
      if (answer.type === "opaqueredirect" || answer.status === 401) {
        // the pages never redirect a refresh: a proxy asks to sign in, or the password has been replaced
        failures += 1;
        show("signed out", true);
      } else if (answer.status === 304 || answer.ok) {
        if (isDown) return location.reload();
        const html = answer.ok ? await answer.text() : "";
        if (isBusy()) return schedule();
        if (html) apply(html);
        etag = answer.headers.get("ETag") ?? "";
        updated = new Date();
        failures = 0;
        show("");
      } else {
        const error = document.createElement("template");
        error.innerHTML = await answer.text();
        failures += 1;
        show(error.content.querySelector("h1")?.textContent ?? `the server answered ${answer.status}`);
      }
    } catch {
      failures += 1;
      show("the server does not answer");
    }
    schedule();
  }

  function schedule(seconds = isDown ? PERIOD_SECONDS : Math.min(PERIOD_SECONDS * 2 ** failures, MAX_PERIOD_SECONDS)) {
    clearTimeout(timer);
    timer = setTimeout(refresh, seconds * 1000);
  }

  button.addEventListener("click", () => {
    isPaused = !isPaused;
    show("");
    if (!isPaused) schedule(0);
  });
  document.addEventListener("visibilitychange", () => { if (!document.hidden) schedule(0); });
  show("");
  schedule();
})();

"use strict";
// Shows details of the token or chart point under the pointer or selected by the arrow keys. Without the script only these
// details are missing: all numbers are also in tables.
(() => {
  const detail = document.getElementById("detail");

  let owner; // the element whose details are shown: only it may hide them

  const describe = (who, parts) => {
    if (!parts.length && who !== owner) return;
    owner = who;
    detail.replaceChildren(...parts.map((part, i) => {
      const span = document.createElement("span");
      span.textContent = i + 1 < parts.length ? `${part},` : part;
      return span;
    }).flatMap((span) => [span, " "]));
    detail.hidden = parts.length === 0;
  };

  // The index that a key moves to; undefined for other keys and for browser shortcuts
  const moved = (event, at, last) => event.altKey || event.ctrlKey || event.metaKey ? undefined : ({
    ArrowLeft: Math.max(at - 1, 0), ArrowRight: Math.min(at + 1, last), Home: 0, End: last,
  })[event.key];

  // Lifting a finger is not leaving: details stay until another place is touched
  const onLeave = (place, focused, forget) => {
    place.addEventListener("pointerleave", (event) => event.pointerType !== "touch" && forget());
    focused.addEventListener("blur", forget);
  };

  // The number, in its document, of the first token of each element; tokens that share a character are one element
  const startsOf = (box) => {
    let next = Number(box.dataset.start);
    return Array.from(box.children, (token) => {
      const start = next;
      next += token.dataset.i.split(" ").length;
      return start;
    });
  };

  for (const box of document.querySelectorAll(".tokens")) {
    const tokens = box.children;
    let at = -1;
    let starts;

    const show = (next) => {
      starts ??= startsOf(box);
      tokens[at]?.classList.remove("at");
      at = next;
      const token = tokens[at];
      if (!token) return describe(box, []);
      token.classList.add("at");
      const ids = token.dataset.i.split(" ");
      describe(box, [
        ids.length > 1 ? `tokens ${starts[at]}:${starts[at] + ids.length}` : `token ${starts[at]}`,
        `id ${ids.join(", ")}`,
        JSON.stringify(token.textContent),
        ...(token.classList.contains("dim") ? ["not in the loss"] : []),
      ]);
    };

    box.addEventListener("keydown", (event) => {
      const next = moved(event, at, tokens.length - 1);
      if (next === undefined || !tokens.length) return;
      event.preventDefault();
      show(next);
      tokens[at].scrollIntoView({ block: "nearest" });
    });
    box.addEventListener("pointerover", (event) => {
      const next = Array.prototype.indexOf.call(tokens, event.target);
      if (next >= 0) show(next);
    });
    onLeave(box, box, () => show(-1));
  }

  for (const chart of document.querySelectorAll(".chart")) {
    const points = JSON.parse(chart.querySelector("script").textContent);
    const plot = chart.querySelector(".plot");
    const area = chart.querySelector(".area");
    const cursor = chart.querySelector(".cursor");
    const last = points.steps.at(-1);
    let at = -1;

    const show = (next) => {
      at = next;
      cursor.hidden = at < 0;
      if (at < 0) return describe(plot, []);
      cursor.style.left = `${100 * points.steps[at] / last}%`;
      describe(plot, [
        `step ${points.steps[at].toLocaleString("en")}`,
        ...points.names.map((name, i) => `${name} ${points.values[i][at]}`
          + (points.targets.length ? ` (target ${points.targets[i][at]})` : "")),
      ]);
    };

    plot.addEventListener("keydown", (event) => {
      const next = moved(event, at, points.steps.length - 1);
      if (next === undefined) return;
      event.preventDefault();
      show(next);
    });
    for (const kind of ["pointerdown", "pointermove"]) area.addEventListener(kind, (event) => {
      const box = area.getBoundingClientRect();
      const step = last * (event.clientX - box.left) / box.width;
      const next = points.steps.findIndex((each) => each >= step);
      show(next < 0 ? points.steps.length - 1 : next);
    });
    onLeave(area, plot, () => show(-1));
  }
})();

"use strict";
// Tells more of the token or the point of a chart that is pointed at, or reached by the arrow keys. Without it nothing is lost
// but that: all numbers also stand in tables.
(() => {
  const told = document.getElementById("told");

  let teller; // what told last: only it takes back what is told

  const tell = (who, parts) => {
    if (!parts.length && who !== teller) return;
    teller = who;
    told.replaceChildren(...parts.map((part, i) => {
      const span = document.createElement("span");
      span.textContent = i + 1 < parts.length ? `${part},` : part;
      return span;
    }).flatMap((span) => [span, " "]));
    told.hidden = parts.length === 0;
  };

  // Where a key moves to; undefined for keys that do not, or are meant for the browser
  const moved = (event, at, last) => event.altKey || event.ctrlKey || event.metaKey ? undefined : ({
    ArrowLeft: Math.max(at - 1, 0), ArrowRight: Math.min(at + 1, last), Home: 0, End: last,
  })[event.key];

  // A finger that is lifted has not left for another place: what it showed stays until another place is touched
  const onLeave = (place, focused, forget) => {
    place.addEventListener("pointerleave", (event) => event.pointerType !== "touch" && forget());
    focused.addEventListener("blur", forget);
  };

  // The number in its document of each token of a box; one may be several that share a character
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
      if (!token) return tell(box, []);
      token.classList.add("at");
      const ids = token.dataset.i.split(" ");
      tell(box, [
        ids.length > 1 ? `tokens ${starts[at]}:${starts[at] + ids.length}` : `token ${starts[at]}`,
        `id ${ids.join(", ")}`,
        JSON.stringify(token.textContent),
        ...(token.classList.contains("dim") ? ["not trained on"] : []),
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
      if (at < 0) return tell(plot, []);
      cursor.style.left = `${100 * points.steps[at] / last}%`;
      tell(plot, [
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

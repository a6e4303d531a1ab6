// What pages do with script beyond htmx: local times, and copying ids.
"use strict";

const localTime = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "long" });

function enrich(root) {
  for (const each of root.querySelectorAll("time[datetime]:not([title])")) {
    each.title = localTime.format(new Date(each.dateTime));
  }
  for (const each of root.querySelectorAll("button.copy[hidden]")) {
    each.hidden = false;
  }
}

// The clipboard of scripts needs HTTPS or a loopback host, and leave; a selection is copied without them.
async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    return;
  } catch {
    // Not there on plain HTTP, or refused.
  }
  const field = document.createElement("textarea");
  field.value = text;
  field.className = "skip";
  document.body.append(field);
  field.select();
  document.execCommand("copy");
  field.remove();
}

document.addEventListener("click", async (event) => {
  const button = event.target.closest("button.copy");
  if (button) {
    await copy(button.dataset.copy);
    button.textContent = "Copied";
    setTimeout(() => { button.textContent = "Copy"; }, 1500);
  }
});
document.addEventListener("htmx:after:swap", () => enrich(document));
enrich(document);

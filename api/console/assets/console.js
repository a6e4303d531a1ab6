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
// Files and folders that are dropped on a form become those of its field, and are sent as if they had been chosen.
async function filesOf(entry) {
  if (entry.isFile) {
    return [await new Promise((resolve, reject) => { entry.file(resolve, reject); })];
  }
  const reader = entry.createReader();
  const found = [];
  for (;;) {
    const some = await new Promise((resolve, reject) => { reader.readEntries(resolve, reject); });
    if (!some.length) {
      return found;
    }
    for (const each of some) {
      found.push(...await filesOf(each));
    }
  }
}

async function dropped(transfer) {
  const entries = [...transfer.items].map((each) => each.webkitGetAsEntry()).filter(Boolean);
  const plain = [...transfer.files]; // both are gone once this function has waited
  const found = entries.length ? (await Promise.all(entries.map(filesOf))).flat() : plain;
  const list = new DataTransfer();
  for (const each of found.filter((file) => !file.name.startsWith("."))) {
    list.items.add(each);
  }
  return list.files;
}

for (const form of document.querySelectorAll("form[data-drop]")) {
  const zone = form.querySelector(".zone");
  form.addEventListener("dragover", (event) => { event.preventDefault(); zone.classList.add("over"); });
  form.addEventListener("dragleave", () => { zone.classList.remove("over"); });
  form.addEventListener("drop", async (event) => {
    event.preventDefault();
    zone.classList.remove("over");
    const files = await dropped(event.dataTransfer);
    if (files.length) {
      document.getElementById(form.dataset.drop).files = files;
      form.requestSubmit();
    }
  });
}
document.addEventListener("submit", (event) => {
  const busy = event.target.querySelector("button[data-busy]");
  if (busy) {
    busy.textContent = busy.dataset.busy;
  }
});
document.addEventListener("htmx:after:swap", () => enrich(document));
enrich(document);

// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

import {Engine} from "./engine.js";
import {decode, encode} from "./link.js";

// Time without input before a check.
const pause = 300;
const firstExample = "rack-awareness";

const select = document.getElementById("example");
const reset = document.getElementById("reset");
const share = document.getElementById("share");
const statusLine = document.getElementById("status");
const progress = document.getElementById("progress");
const notice = document.getElementById("notice");
const messages = document.getElementById("messages");
const cases = document.getElementById("cases");
const command = document.getElementById("command");

let examples = [];
let engine;
// The texts before they were edited.
let original;

// element returns an element with children. Texts become text nodes, never HTML.
function element(name, attributes = {}, ...children) {
  const e = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    e.setAttribute(key, value);
  }
  e.append(...children.filter((child) => child !== undefined));
  return e;
}

// Editor is a textarea with line numbers.
class Editor {
  #area;
  #gutter;

  constructor(id) {
    this.#area = document.getElementById(id);
    this.#gutter = this.#area.previousElementSibling;
    this.#area.addEventListener("scroll", () => { this.#gutter.scrollTop = this.#area.scrollTop; });
    this.#area.addEventListener("input", () => {
      this.mark([]);
      changed();
    });
    this.#area.addEventListener("beforeinput", (event) => {
      if (event.inputType === "insertLineBreak") {
        event.preventDefault();
        this.#newLine();
      }
    });
  }

  // newLine begins a line with the indentation of the last one. Undo works only with execCommand.
  #newLine() {
    const before = this.text.slice(0, this.#area.selectionStart);
    const [indentation] = before.slice(before.lastIndexOf("\n") + 1).match(/^ */);
    document.execCommand("insertText", false, `\n${indentation}`);
  }

  get text() { return this.#area.value; }

  set text(text) {
    this.#area.value = text;
    this.#area.disabled = false;
    this.#area.scrollTo(0, 0);
    this.mark([]);
  }

  // mark highlights the numbers of lines.
  mark(lines) {
    const count = this.text.split("\n").length;
    const numbers = Array.from({length: count}, (_, i) => element("div", lines.includes(i + 1) ? {class: "marked"} : {}, `${i + 1}`));
    this.#gutter.replaceChildren(...numbers);
    this.#gutter.scrollTop = this.#area.scrollTop;
  }

  // go selects a line.
  go(line) {
    const lines = this.text.split("\n");
    const start = lines.slice(0, line - 1).join("\n").length + (line > 1 ? 1 : 0);
    this.#area.focus();
    this.#area.setSelectionRange(start, start + (lines[line - 1] ?? "").length);
    this.#area.scrollTop = this.#area.scrollHeight * (line - 1) / lines.length - this.#area.clientHeight / 3;
  }
}

const editors = {"policy.yaml": new Editor("policy"), "policy_test.yaml": new Editor("test")};
const policy = editors["policy.yaml"];
const test = editors["policy_test.yaml"];

function setStatus(state, text) {
  statusLine.dataset.state = state;
  statusLine.textContent = text;
  progress.hidden = state !== "busy";
}

// showProgress shows the loaded part of the program. At the end, the browser still compiles it.
function showProgress(part) {
  if (part < 1) {
    progress.value = part;
    statusLine.textContent = "Loading the compiler…";
  } else {
    progress.removeAttribute("value");
    statusLine.textContent = "Starting…";
  }
}

// Checks. Only one runs at a time. A change during it leads to another one.
let timer;
let running = false;
let stale = false;

function changed() {
  reset.disabled = false;
  notice.textContent = "";
  clearTimeout(timer);
  timer = setTimeout(check, pause);
}

async function check() {
  clearTimeout(timer);
  stale = true;
  if (running) {
    return;
  }
  running = true;
  while (stale) {
    stale = false;
    try {
      const report = await engine.check(policy.text, test.text);
      if (!stale) {
        show(report);
      }
    } catch (error) {
      clear();
      setStatus("bad", `The check failed: ${error.message}`);
    }
  }
  running = false;
}

function clear() {
  messages.replaceChildren();
  cases.replaceChildren();
  command.hidden = true;
}

function plural(count, noun) { return `${count} ${noun}${count === 1 ? "" : "s"}`; }

// show shows the report of the program.
function show(report) {
  const errors = report.Errors ?? [];
  const warnings = report.Warnings ?? [];
  const all = report.Cases ?? [];
  const failed = all.filter((c) => c.Failures).length;
  if (errors.length > 0) {
    setStatus("bad", plural(errors.length, "error"));
  } else if (failed > 0) {
    setStatus("bad", `${failed} of ${plural(all.length, "case")} failed`);
  } else {
    setStatus("good", `${plural(all.length, "case")} passed`);
  }
  messages.replaceChildren(...errors.map((m) => showMessage(m, "error")), ...warnings.map((m) => showMessage(m, "warning")));
  cases.replaceChildren(...all.map(showCase));
  command.hidden = false;
  command.querySelector("pre").textContent = report.Text;
  for (const [file, editor] of Object.entries(editors)) {
    editor.mark(errors.concat(warnings).filter((m) => m.File === file).map((m) => m.Line));
  }
}

function showMessage(m, kind) {
  let place;
  if (m.File) {
    place = element("button", {type: "button"}, `${m.File}:${m.Line}`);
    place.addEventListener("click", () => editors[m.File].go(m.Line));
  }
  return element("li", {class: kind}, element("strong", {}, kind), place, element("pre", {}, m.Text));
}

// The colors of verdicts.
const colors = {allowed: "good", waiting: "wait", rejected: "bad", "timed-out": "bad", failed: "bad"};

function showCase(c) {
  const passed = !c.Failures;
  const head = element("div", {class: "head"},
    element("span", {class: `mark ${passed ? "good" : "bad"}`, role: "img", "aria-label": passed ? "passed" : "failed"}, passed ? "✓" : "✗"),
    element("h3", {}, c.Name));
  const failures = (c.Failures ?? []).map((text) => element("pre", {class: "failure"}, text));
  return element("li", {class: passed ? "" : "failed"}, head, ...failures, ...(c.Results ?? []).map((v) => showVerdict(v, c.Results.length > 1)));
}

function showVerdict(v, several) {
  const shown = element("div", {class: "verdict"},
    element("p", {},
      element("span", {class: `badge ${colors[v.Verdict] ?? "none"}`}, v.Verdict),
      v.Audit ? element("span", {class: "badge none"}, "audit") : undefined,
      several ? element("strong", {}, v.Policy) : undefined,
      v.Rule ? element("code", {}, v.Rule) : undefined,
      element("span", {class: "cost", title: "Cost of all expressions in units of CEL. The limit of a policy is 1,000,000."}, `cost ${v.Cost.toLocaleString("en")}`)));
  if (v.Message) {
    shown.append(element("p", {class: "message"}, v.Message));
  }
  const rows = [
    ...pairs("annotation", v.Annotations), ...pairs("label", v.Labels),
    ...(v.Tasks ?? []).flatMap((t) => [["task", t.Name, t.Handler], ...pairs("parameter", t.Parameters)]),
    ...(v.Waived ?? []).map((name) => ["waived", name, "timed out, and the policy allows it"]),
  ];
  if (rows.length > 0) {
    shown.append(element("ul", {}, ...rows.map(([kind, key, value]) =>
      element("li", {}, element("span", {}, kind), element("code", {}, `${key}: `, element("b", {}, value))))));
  }
  return shown;
}

function pairs(kind, map) { return Object.entries(map ?? {}).map(([key, value]) => [kind, key, value]); }

// edit shows texts in the editors and checks them.
function edit(texts) {
  original = texts;
  reset.disabled = true;
  policy.text = texts.policy;
  test.text = texts.test;
  notice.textContent = "";
  clear();
  setStatus("busy", "Checking…");
  check();
}

function exampleOf(name) { return examples.find((e) => e.name === name); }

function showExample(name) {
  const found = exampleOf(name) ?? exampleOf(firstExample);
  select.value = found.name;
  edit(found);
}

// open shows the texts or the example of the address.
async function open() {
  try {
    const texts = await decode(location.hash);
    if (texts) {
      select.value = "";
      edit(texts);
      return;
    }
    showExample(decodeURIComponent(location.hash.replace(/^#example=/, "")));
  } catch (error) {
    showExample(firstExample);
    notice.textContent = `The link is not valid: ${error.message}`;
  }
}

select.addEventListener("change", () => {
  history.replaceState(null, "", `#example=${select.value}`);
  showExample(select.value);
});

reset.addEventListener("click", () => edit(original));

share.addEventListener("click", async () => {
  try {
    history.replaceState(null, "", await encode(policy.text, test.text));
    await navigator.clipboard.writeText(location.href);
    notice.textContent = "Link copied";
  } catch (error) {
    notice.textContent = error.name === "NotAllowedError" ? "Copy the link from the address bar" : `No link: ${error.message}`;
  }
});

window.addEventListener("hashchange", open);

async function start() {
  try {
    const response = await fetch("examples.json");
    if (!response.ok) {
      throw new Error(`examples.json: ${response.status} ${response.statusText}`);
    }
    examples = await response.json();
    engine = new Engine(exampleOf(firstExample), showProgress);
  } catch (error) {
    setStatus("bad", `The page cannot be loaded: ${error.message}`);
    return;
  }
  select.replaceChildren(element("option", {value: "", hidden: ""}, "Policy of a link"), ...examples.map((e) => element("option", {value: e.name}, e.name)));
  select.disabled = share.disabled = false;
  await open();
}

start();

// The page: its runs, its controls, and what both say of the moment that is shown.

const TICKS = 1e6; // the length of the axis of time
const MAX_LINES = 8, MAX_LINES_BESIDE = 4; // of transfers in words; where two runs stand side by side
const LONG = 112; // letters of a sentence in a line; half as many where two runs stand side by side
const INTRODUCTION = "Before the first step.";
const STEP_MS = 1100; // for which a step moves at speed 1

class Section {
  constructor(data, number, parent, player) {
    this.run = new Run(data);
    this.player = player;
    this.element = document.createElement("section");
    this.element.className = "run";
    this.element.id = `run-${number}`;
    const several = pageData.runs.length > 1;
    if (several) this.add("h2", "", `${this.run.name}: ${this.run.time}`);
    if (this.run.stalled.length) this.addStall();
    this.phase = this.add("div", "phase");
    this.sentence = this.add("p", "sentence");
    this.sentence.setAttribute("aria-live", "polite");
    this.transfers = this.add("ul", "transfers");
    this.keepHeights(several);
    const views = this.add("div", "views");
    const [graph, grid] = [views.appendChild(document.createElement("div")), views.appendChild(document.createElement("div"))];
    graph.innerHTML = "<h3>Messages between ranks</h3><p class='key'></p>";
    graph.querySelector(".key").textContent = this.graphKey();
    grid.innerHTML = "<h3>Chunks on each rank</h3><p class='key'></p>";
    this.gridKey = grid.querySelector(".key");
    this.graph = new GraphView(this.run, graph, several);
    this.grid = new GridView(this.run, grid, (chunk) => player.choose(chunk));
    parent.append(this.element);
  }

  graphKey() {
    const dot = "is a chunk in transit: blue if it will be added, green if it is complete and will be copied.";
    if (this.run.numRanks > FEW_RANKS) return `A moving dot ${dot}`;
    const box = "A moving box is a chunk in transit; its stripes are the ranks whose contributions it contains.";
    return mostInTransit(this.run) > CROWDED * this.run.numRanks ? `${box} Where many are in transit, a dot ${dot}` : box;
  }

  // So that nothing below moves while the page plays.
  keepHeights(several) {
    const sentences = pageData.runs.flatMap((run) => run.sentences);
    const longest = Math.max(0, ...sentences.map((sentence) => sentence.length));
    this.sentence.style.minHeight = `${1.5 * Math.ceil(longest / (several ? LONG / 2 : LONG))}em`;
    const most = Math.max(...pageData.runs.map(mostInStep));
    this.maxLines = several ? MAX_LINES_BESIDE : MAX_LINES;
    const lines = Math.ceil(Math.min(most, this.maxLines + 1) / (several ? 1 : 2));
    this.transfers.style.setProperty("--lines", lines);
  }

  add(name, className = "", text = "") {
    const element = document.createElement(name);
    element.className = className;
    element.textContent = text;
    return this.element.appendChild(element);
  }

  addStall() {
    const box = this.add("div", "stalled");
    for (const line of ["This run never finishes.", ...this.run.stalled]) {
      box.appendChild(document.createElement("p")).textContent = line;
    }
  }

  say(tick, step, chosen) {
    const { run } = this, phase = run.phaseOf(step);
    if (!phase) {
      this.sentence.textContent = "A single rank has nothing to send.";
      return;
    }
    const before = run.until === -1;
    this.phase.textContent = `${phase.name}: step ${step + 1} of ${run.numSteps}`;
    const sentence = run.sentences[step];
    const over = run.end <= tick && run.until >= run.numSteps - 1 && !run.stalled.length ? ` Done after ${run.time}${this.lead(tick)}.` : "";
    this.sentence.textContent = `${before ? `${INTRODUCTION} Then ` : ""}${before ? sentence : capital(sentence)}.${over}`;
    this.element.dataset.step = step;
    this.list(tick, step, chosen);
  }

  // By how much the run is faster than the other, once both have ended.
  lead(tick) {
    const [other] = this.player.sections.map(({ run }) => run).filter((run) => run !== this.run);
    if (!other || other.stalled.length || tick < TICKS) return "";
    const times = +(other.end / this.run.end).toPrecision(3);
    return times > 1 ? `; ${other.name} takes ${times} times as long` : "";
  }

  list(tick, step, chosen) {
    const { run } = this, rows = [];
    for (let row = run.firstRow[step]; row < run.firstRow[step + 1]; row++) {
      if (chosen === null || run.chunk[row] === chosen) rows.push(row);
    }
    const key = `${step} ${chosen} ${rows.map((row) => run.stateOf(row, tick)[0] + run.stateOf(row, tick)[1]).join("")}`;
    if (key === this.listed) return; // most frames change nothing here
    this.listed = key;
    // What never happens comes first: that is what one wants to know.
    const shown = rows.slice().sort((a, b) => (run.stateOf(b, tick) === "never") - (run.stateOf(a, tick) === "never") || a - b);
    this.transfers.replaceChildren(...shown.slice(0, this.maxLines).map((row) => listItem(run.sentenceOf(row), run.stateOf(row, tick))));
    if (shown.length > this.maxLines) this.transfers.append(listItem(`and ${shown.length - this.maxLines} more`, "more"));
  }

  // isStepwise: only what belongs to this step and those before is shown. At a step of -1 nothing has begun.
  draw(tick, shown, isStepwise, chosen, colours) {
    const step = Math.max(shown, 0);
    this.run.until = isStepwise && this.run.numSteps ? shown : Infinity;
    this.say(tick, step, chosen);
    this.graph.draw(tick, chosen, colours);
    this.grid.draw(tick, chosen, colours);
    this.gridKey.textContent = this.grid.striped
      ? "One row per rank. Stripes: the ranks whose contributions the chunk contains; number: how many. Green frame: complete."
      : this.run.reduces ? "One row per rank. The darker a cell, the more contributions the chunk contains. Green: complete." : "One row per rank. Green: the rank has the chunk.";
  }
}

class Player {
  constructor() {
    this.tick = 0;
    this.step = null; // the one that was asked for, of which and before which all is shown; -1: none has begun
    this.chosen = null;
    this.playing = false; // also while a step moves to its end
    this.stillness = window.matchMedia("(prefers-reduced-motion: reduce)");
    const parent = document.getElementById("runs");
    parent.classList.toggle("two", pageData.runs.length > 1);
    this.sections = pageData.runs.map((data, number) => new Section(data, number, parent, this));
    this.lanes = this.sections.map(({ run }) => {
      const lanes = document.getElementById("lanes");
      if (this.sections.length > 1) lanes.appendChild(document.createElement("h3")).textContent = `${run.name}: ${run.time}`;
      return new LanesView(run, lanes, (tick) => this.seek(tick));
    });
    this.steps = this.longest().numSteps;
    this.wholeMs = Math.min(Math.max(STEP_MS * this.steps, 7000), 45000);
    this.connect();
    this.readHash();
  }

  longest() { return this.sections.map(({ run }) => run).reduce((a, b) => (b.end > a.end ? b : a)); }

  connect() {
    const on = (id, action) => document.getElementById(id).addEventListener("click", action);
    on("play", () => this.toggle());
    on("to-start", () => this.seek(0));
    on("to-end", () => this.seek(TICKS));
    on("step-back", () => this.stepBy(-1));
    on("step-on", () => this.stepBy(1));
    on("theme", () => this.switchTheme());
    document.getElementById("scrubber").addEventListener("input", (event) => this.seek((event.target.value / 1000) * TICKS));
    document.addEventListener("keydown", (event) => this.key(event));
    // Or else the button that has the focus would be pressed as well.
    document.addEventListener("keyup", (event) => event.key === " " && event.target.tagName === "BUTTON" && event.preventDefault());
    window.addEventListener("hashchange", () => this.readHash());
    window.addEventListener("resize", () => this.draw());
    window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.draw());
  }

  key(event) {
    if (event.target.tagName === "SELECT" || event.ctrlKey || event.metaKey || event.altKey) return;
    const action = { " ": () => this.toggle(), ArrowLeft: () => this.stepBy(-1), ArrowRight: () => this.stepBy(1),
                     Home: () => this.seek(0), End: () => this.seek(TICKS) }[event.key];
    if (!action) return;
    event.preventDefault(); // space would press the button that has the focus, arrows move the scrubber
    action();
  }

  readHash() {
    const asked = new URLSearchParams(location.hash.slice(1));
    const number = (name) => (asked.has(name) && asked.get(name).trim() !== "" && Number.isFinite(+asked.get(name)) ? +asked.get(name) : null);
    if (asked.get("theme") === "dark" || asked.get("theme") === "light") document.documentElement.dataset.theme = asked.get("theme");
    this.chosen = number("chunk");
    const step = number("step"), share = number("t");
    if (step !== null) this.toStep(Math.round(step) - 1);
    else this.seek(Math.min(Math.max(share ?? 0, 0), 1) * TICKS);
  }

  // Steps are those of the run that ends last; the other is shown at the same time.
  current() { return this.step ?? this.longest().stepAt(this.tick); }

  endOf(step) { return step < 0 ? 0 : Math.min(this.longest().stepEnd[step], TICKS); }

  // The step under way, or else the one after it.
  next() {
    const now = this.current(), isUnderWay = now >= 0 && (this.step === null || this.tick < this.endOf(now));
    return isUnderWay ? now : Math.min(now + 1, this.steps - 1);
  }

  // Forward a step moves to its end, and jumps there if it is asked for again; backward all jumps.
  stepBy(by) {
    if (by < 0) return this.toStep(this.current() - 1);
    const next = this.next();
    if ((this.playing && this.step !== null) || this.stillness.matches || this.endOf(next) <= this.tick) return this.toStep(next);
    this.step = next;
    this.begin = this.tick;
    return this.start();
  }

  // To the end of a step; before the first where there is none.
  toStep(step) {
    this.pause();
    this.step = Math.max(Math.min(step, this.steps - 1), -1);
    this.tick = this.endOf(this.step);
    return this.draw();
  }

  // To a moment; where it is the end of a step, that is what is shown.
  seek(tick) {
    const ended = this.longest().stepEndingAt(Math.round(tick));
    if (tick <= 0 || ended !== -1) return this.toStep(tick <= 0 ? -1 : ended);
    this.pause();
    this.tick = tick;
    this.step = null;
    return this.draw();
  }

  choose(chunk) {
    this.chosen = chunk === this.chosen ? null : chunk;
    this.draw();
  }

  toggle() {
    if (this.playing) return this.pause();
    if (this.tick >= TICKS) this.toStep(-1);
    if (this.stillness.matches) return this.hop();
    this.step = null;
    return this.start();
  }

  // Where no motion is wanted, a run plays as one picture for each step.
  hop() {
    this.toStep(this.next());
    if (this.step === this.steps - 1) return;
    this.playing = true;
    this.showPlaying();
    this.timer = setTimeout(() => this.hop(), STEP_MS / document.getElementById("speed").value);
  }

  start() {
    this.playing = true;
    this.before = null;
    this.showPlaying();
    this.due = requestAnimationFrame((now) => this.frame(now));
  }

  pause() {
    this.playing = false;
    clearTimeout(this.timer);
    cancelAnimationFrame(this.due);
    this.showPlaying();
  }

  showPlaying() {
    const button = document.getElementById("play");
    // Drawn: the character for a pause is an empty box where no font of emoji is installed.
    const [path, name] = this.playing ? ["M1 1h3v10H1zM7 1h3v10H7z", "Pause"] : ["M1 1l10 5-10 5z", "Play"];
    button.innerHTML = `<svg width="11" height="12" aria-hidden="true"><path d="${path}" fill="currentColor"/></svg> ${name}`;
    button.setAttribute("aria-label", this.playing ? "Pause" : "Play");
  }

  frame(now) {
    if (!this.playing) return;
    const speed = +document.getElementById("speed").value, passed = (now - (this.before ?? now)) * speed;
    const end = this.step === null ? TICKS : this.endOf(this.step);
    const perMs = this.step === null ? TICKS / this.wholeMs : (end - this.begin) / STEP_MS;
    this.before = now;
    this.tick += passed * perMs;
    if (this.tick >= end) return this.step === null ? this.seek(TICKS) : this.toStep(this.step);
    this.draw();
    this.due = requestAnimationFrame((later) => this.frame(later));
  }

  switchTheme() {
    const root = document.documentElement, system = window.matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = (root.dataset.theme ?? (system ? "dark" : "light")) === "dark" ? "light" : "dark";
    this.draw();
  }

  draw() {
    const colours = themeColours(), key = `${this.chosen} ${colours.paper}`;
    const longest = this.longest();
    for (const section of this.sections) {
      const step = section.run === longest || this.step === -1 ? this.current() : section.run.stepAt(this.tick);
      section.draw(this.tick, step, this.step !== null, this.chosen, colours);
    }
    for (const lanes of this.lanes) lanes.draw(this.tick, this.chosen, colours, key);
    this.showKey(colours);
    document.getElementById("scrubber").value = (this.tick / TICKS) * 1000;
    const { firstS, lastS, unit: [scale, unit] } = pageData;
    const now = (firstS + (this.tick / TICKS) * (lastS - firstS)) * scale;
    document.getElementById("clock").textContent = `${now.toFixed(3)} of ${(lastS * scale).toPrecision(4)} ${unit}`;
    document.documentElement.dataset.tick = Math.round(this.tick);
  }

  showKey(colours) {
    const signs = [["blue", "sends (to be added)"], ["sky", "sends (to be copied)"], ["orange", "adds"], ["green", "copies"]];
    const present = signs.filter(([name]) => this.sections.some(({ run }) => run.action.some((action) => (action === COPY) === (name === "sky" || name === "green"))));
    if (this.sections.some(({ run }) => run.stalled.length)) present.push(["vermillion", "sends without end"]);
    const html = present.map(([name, text]) => `<span><i style="background:${colours[name]}"></i>${text}</span>`).join(" ");
    const note = ". A bar shows the chunk and its receiver (c3 → r1: chunk 3 to rank 1); a thin line below it is a message in transit";
    document.getElementById("lanes-key").innerHTML = html + note;
  }
}

function listItem(text, className) {
  const item = document.createElement("li");
  item.textContent = text;
  item.className = className;
  return item;
}

function capital(text) { return text[0].toUpperCase() + text.slice(1); }

const player = new Player();

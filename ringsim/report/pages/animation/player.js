// The page: its runs, its controls, and what both say of the moment that is shown.

const TICKS = 1e6; // the length of the axis of time
const MAX_LINES = 8, MAX_LINES_BESIDE = 4; // of transfers in words; where two runs stand side by side
const LONG = 112; // letters of a sentence in a line; half as many where two runs stand side by side
const INTRODUCTION = "Before the first step.";

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
    const before = tick <= 0 && step === 0;
    this.phase.textContent = `${phase.name}: step ${step} (the steps are 0 to ${run.numSteps - 1})`;
    const sentence = run.sentences[step];
    const over = run.end <= tick && !run.stalled.length ? ` Done after ${run.time}${this.lead(tick)}.` : "";
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

  draw(tick, step, chosen, colours) {
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
    this.step = null; // set where a step was asked for: several may end at one time
    this.chosen = null;
    this.playing = false;
    const parent = document.getElementById("runs");
    parent.classList.toggle("two", pageData.runs.length > 1);
    this.sections = pageData.runs.map((data, number) => new Section(data, number, parent, this));
    this.lanes = this.sections.map(({ run }) => {
      const lanes = document.getElementById("lanes");
      if (this.sections.length > 1) lanes.appendChild(document.createElement("h3")).textContent = `${run.name}: ${run.time}`;
      return new LanesView(run, lanes, (tick) => this.seek(tick));
    });
    this.steps = this.longest().numSteps;
    this.wholeMs = Math.min(Math.max(1100 * this.steps, 7000), 45000);
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
    if (step !== null) this.toStep(Math.min(Math.max(Math.round(step), 0), this.steps - 1));
    else this.seek(Math.min(Math.max(share ?? 0, 0), 1) * TICKS);
  }

  // Steps are those of the run that ends last; the other is shown at the same time.
  current() { return this.step ?? this.longest().stepAt(this.tick); }

  stepBy(by) {
    const end = this.longest().stepEnd[this.current()];
    if (by < 0 && this.current() === 0 && this.tick <= end) return this.seek(0);
    // A step that is under way is first finished, or begun anew.
    const next = this.tick < end ? this.current() + (by < 0 ? -1 : 0) : this.current() + by;
    return this.toStep(Math.min(Math.max(next, 0), this.steps - 1));
  }

  toStep(step) {
    if (this.steps === 0) return this.seek(0);
    this.pause();
    this.tick = Math.min(this.longest().stepEnd[step], TICKS);
    this.step = step;
    return this.draw();
  }

  seek(tick) {
    this.pause();
    this.tick = tick;
    this.step = null;
    this.draw();
  }

  choose(chunk) {
    this.chosen = chunk === this.chosen ? null : chunk;
    this.draw();
  }

  toggle() {
    if (this.playing) return this.pause();
    if (this.tick >= TICKS) this.tick = 0;
    this.step = null;
    this.playing = true;
    this.before = null;
    this.showPlaying();
    return requestAnimationFrame((now) => this.frame(now));
  }

  pause() {
    this.playing = false;
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
    const speed = +document.getElementById("speed").value;
    if (this.before !== null) this.tick = Math.min(this.tick + ((now - this.before) / this.wholeMs) * TICKS * speed, TICKS);
    this.before = now;
    if (this.tick >= TICKS) this.pause();
    this.draw();
    if (this.playing) requestAnimationFrame((later) => this.frame(later));
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
      const step = section.run === longest ? this.current() : section.run.stepAt(this.tick);
      section.draw(this.tick, step, this.chosen, colours);
    }
    for (const lanes of this.lanes) lanes.draw(this.tick, this.chosen, colours, key);
    this.showKey(colours);
    document.getElementById("scrubber").value = (this.tick / TICKS) * 1000;
    const { firstS, lastS } = pageData, [scale, unit] = timeUnit(lastS);
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

// `Run`: one run, decoded, and its state at any time. Times are ticks of the page's axis of time; Infinity: never.
// Steps are numbered from 0; people, and the address of the page, count them from 1.
"use strict";

const ADD_SHARE = 0, ADD_SUM = 1, COPY = 2; // what a receiver does: the number of its sentence
const NOTHING = -1;

class Run {
  constructor(data) {
    Object.assign(this, data);
    this.numTransfers = this.src.length;
    this.needed = this.reduces ? this.numRanks : 1; // contributions to a chunk that is complete
    this.decodeTimes(data.times);
    this.stepEnd = data.stepEnd.map((tick) => tick ?? Infinity);
    this.end = Math.max(0, ...this.stepEnd);
    this.step = new Int32Array(this.numTransfers);
    for (let step = 0; step < this.numSteps; step++) this.step.fill(step, this.firstRow[step], this.firstRow[step + 1]);
    this.sends = this.rowsBy(this.src, this.numRanks);
    this.receives = this.rowsBy(this.dst, this.numRanks);
    this.writes = this.rowsBy(this.src.map((_, row) => this.cell(this.dst[row], this.chunk[row])), this.numRanks * this.numChunks);
    this.until = Infinity; // the last step of which anything is shown; -1: none yet
    this.replay();
  }

  decodeTimes(times) {
    let before = times.start.map((tick) => tick ?? Infinity);
    this.start = before;
    for (const name of ["left", "arrived", "apply", "applied"]) {
      before = times[name].map((later, row) => (later === null ? Infinity : before[row] + later));
      this[name] = before;
    }
  }

  rowsBy(key, length) {
    const rows = Array.from({ length }, () => []);
    key.forEach((value, row) => rows[value].push(row));
    return rows;
  }

  cell(rank, chunk) { return rank * this.numChunks + chunk; }

  // Whose shares each message carries, and its receiver's chunk holds then: bit r for rank r; how many these are, and
  // what the receiver does.
  replay() {
    const holds = this.initial.map((rank) => (rank === NOTHING ? 0n : 1n << BigInt(rank)));
    this.own = holds.slice();
    for (const name of ["message", "result", "held", "action"]) this[name] = new Array(this.numTransfers);
    for (let step = 0; step < this.numSteps; step++) {
      const rows = [];
      for (let row = this.firstRow[step]; row < this.firstRow[step + 1]; row++) rows.push(row);
      for (const row of rows) this.message[row] = holds[this.cell(this.src[row], this.chunk[row])];
      for (const row of rows) {
        const cell = this.cell(this.dst[row], this.chunk[row]);
        this.action[row] = !this.reduce[row] ? COPY : countBits(holds[cell]) === 1 ? ADD_SHARE : ADD_SUM;
        holds[cell] = this.reduce[row] ? holds[cell] | this.message[row] : this.message[row];
        this.result[row] = holds[cell];
        this.held[row] = countBits(holds[cell]);
      }
    }
  }

  // The last transfer applied to a cell until `tick`, or NOTHING.
  lastWrite(cell, tick) {
    let last = NOTHING;
    for (const row of this.writes[cell]) {
      if (this.stateOf(row, tick) !== "applied") break;
      last = row;
    }
    return last;
  }

  // How many shares a cell holds, `row` being its last write; without any it is what the rank began with.
  countOf(cell, row) { return row !== NOTHING ? this.held[row] : this.own[cell] ? 1 : 0; }

  isComplete(cell, row) { return this.countOf(cell, row) === this.needed; }

  // The step that ends at this time, the last if several do; -1 if none does, or if it ends because the run hangs.
  stepEndingAt(tick) { return this.stalled.length && tick >= this.end ? -1 : this.stepEnd.lastIndexOf(tick); }

  // The step that ends now; else the first that is not over, and after all of them the last.
  stepAt(tick) {
    const ended = this.stepEndingAt(tick);
    if (ended !== -1) return ended;
    const step = this.stepEnd.findIndex((end) => end >= tick);
    return step === -1 ? this.numSteps - 1 : step;
  }

  phaseOf(step) { return this.phases.find((phase) => phase.first <= step && step <= phase.last); }

  // applied, moving, ahead, or never.
  stateOf(row, tick) {
    if (this.step[row] > this.until) return "ahead";
    if (this.applied[row] <= tick) return "applied";
    if (this.applied[row] === Infinity && tick >= this.end) return "never";
    return this.start[row] < tick ? "moving" : "ahead";
  }

  sentenceOf(row) {
    const names = { src: this.src[row], dst: this.dst[row], chunk: this.chunk[row], held: this.held[row], needed: this.needed };
    const sentence = this.templates[this.action[row]].replace(/\{(\w+)\}/g, (_, name) => names[name]);
    return sentence + (this.held[row] === this.needed && this.reduces ? this.templates[3] : "");
  }

  // What a rank does at a time: {doing, peer}; a rank that waits says for whom. At the end of a step it rests.
  activity(rank, tick) {
    if (this.until === -1) return { doing: "rests", says: "has not begun" };
    const stuck = tick >= this.end && this.stuck.find(([its]) => its === rank);
    if (stuck) return { doing: stuck[1], peer: stuck[2], stuck: true };
    const shown = (row) => this.step[row] <= this.until;
    const [receives, sends] = [this.receives[rank].filter(shown), this.sends[rank].filter(shown)];
    for (const row of receives) {
      if (this.apply[row] <= tick && tick < this.applied[row]) return { doing: this.action[row] === COPY ? "copies" : "adds", peer: this.src[row] };
    }
    for (const row of sends) {
      if (this.start[row] <= tick && tick < this.left[row]) return { doing: "sends", peer: this.dst[row], row };
    }
    const next = receives.find((row) => this.applied[row] > tick);
    if (next !== undefined) return { doing: "waits", peer: this.src[next] };
    const unsent = sends.find((row) => this.left[row] > tick);
    if (unsent !== undefined) return { doing: "waits", peer: this.dst[unsent] };
    const rests = receives.length + sends.length < this.receives[rank].length + this.sends[rank].length;
    return rests ? { doing: "rests", says: `has finished step ${this.until + 1}` } : { doing: "done", says: "has finished" };
  }
}

// How many transfers a step has at most.
function mostInStep({ firstRow }) { return Math.max(0, ...firstRow.slice(1).map((row, step) => row - firstRow[step])); }

// How many are in transit at once; at a tick some are applied before others start.
function mostInTransit({ start, applied }) {
  const changes = [...start.map((tick) => [tick, 1]), ...applied.map((tick) => [tick, -1])].filter(([tick]) => tick < Infinity);
  changes.sort((one, other) => one[0] - other[0] || one[1] - other[1]);
  let number = 0, most = 0;
  for (const [, change] of changes) most = Math.max(most, (number += change));
  return most;
}

function countBits(mask) {
  let count = 0;
  for (; mask; mask &= mask - 1n) count++;
  return count;
}

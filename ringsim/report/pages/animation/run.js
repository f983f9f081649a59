// `Run`: one run, decoded, and its state at any time. Times are ticks of the page's axis of time; Infinity: never.
"use strict";

const ADD_SHARE = 0, COPY = 2; // of the actions; 1: adds to a sum
const NOTHING = -1;

class Run {
  constructor(data) {
    Object.assign(this, data);
    this.numTransfers = this.src.length;
    this.decodeTimes(data.times);
    this.stepEnd = data.stepEnd.map((tick) => tick ?? Infinity);
    this.end = Math.max(0, ...this.stepEnd);
    this.step = new Int32Array(this.numTransfers);
    for (let step = 0; step < this.numSteps; step++) this.step.fill(step, this.firstRow[step], this.firstRow[step + 1]);
    this.sends = this.rowsBy(this.src, this.numRanks);
    this.receives = this.rowsBy(this.dst, this.numRanks);
    this.writes = this.rowsBy(this.src.map((_, row) => this.cell(this.dst[row], this.chunk[row])), this.numRanks * this.numChunks);
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

  // Whose shares each message carries, and its receiver's chunk holds then: bit r for rank r.
  replay() {
    const holds = this.initial.map((rank) => (rank === NOTHING ? 0n : 1n << BigInt(rank)));
    this.own = holds.slice();
    this.message = new Array(this.numTransfers);
    this.result = new Array(this.numTransfers);
    for (let step = 0; step < this.numSteps; step++) {
      const rows = [];
      for (let row = this.firstRow[step]; row < this.firstRow[step + 1]; row++) rows.push(row);
      for (const row of rows) this.message[row] = holds[this.cell(this.src[row], this.chunk[row])];
      for (const row of rows) {
        const cell = this.cell(this.dst[row], this.chunk[row]);
        holds[cell] = this.action[row] === COPY ? this.message[row] : holds[cell] | this.message[row];
        this.result[row] = holds[cell];
        if (countBits(holds[cell]) !== this.held[row]) throw new Error(`transfer ${row}: the page counts other contributions`);
      }
    }
  }

  // The last transfer applied to a cell until `tick`, or NOTHING.
  lastWrite(cell, tick) {
    const rows = this.writes[cell];
    let last = NOTHING;
    for (const row of rows) {
      if (this.applied[row] > tick) break;
      last = row;
    }
    return last;
  }

  // How many shares a cell holds, `row` being its last write; without any it is what the rank began with.
  countOf(cell, row) { return row !== NOTHING ? this.held[row] : this.own[cell] ? 1 : 0; }

  isComplete(cell, row) { return row !== NOTHING ? this.finished[row] === 1 : this.countOf(cell, row) === this.needed; }

  // The step that is under way: the first that is not over; at the end the last one.
  stepAt(tick) {
    const step = this.stepEnd.findIndex((end) => end >= tick);
    return step === -1 ? this.numSteps - 1 : step;
  }

  phaseOf(step) { return this.phases.find((phase) => phase.first <= step && step <= phase.last); }

  // applied, moving, ahead, or never.
  stateOf(row, tick) {
    if (this.applied[row] <= tick) return "applied";
    if (this.applied[row] === Infinity && tick >= this.end) return "never";
    return this.start[row] <= tick ? "moving" : "ahead";
  }

  sentenceOf(row) {
    const names = { src: this.src[row], dst: this.dst[row], chunk: this.chunk[row], held: this.held[row], needed: this.needed };
    const sentence = this.templates[this.action[row]].replace(/\{(\w+)\}/g, (_, name) => names[name]);
    return sentence + (this.finished[row] && this.reduces ? this.templates[3] : "");
  }

  // What a rank does at a time: {doing, peer}; a rank that waits says for whom.
  activity(rank, tick) {
    const stuck = tick >= this.end && this.stuck.find(([its]) => its === rank);
    if (stuck) return { doing: stuck[1], peer: stuck[2], stuck: true };
    for (const row of this.receives[rank]) {
      if (this.apply[row] <= tick && tick < this.applied[row]) return { doing: this.action[row] === COPY ? "copies" : "adds", peer: this.src[row] };
    }
    for (const row of this.sends[rank]) {
      if (this.start[row] <= tick && tick < this.left[row]) return { doing: "sends", peer: this.dst[row], row };
    }
    const next = this.receives[rank].find((row) => this.applied[row] > tick);
    if (next !== undefined) return { doing: "waits", peer: this.src[next] };
    const unsent = this.sends[rank].find((row) => this.left[row] > tick);
    return unsent === undefined ? { doing: "done" } : { doing: "waits", peer: this.dst[unsent] };
  }

  failsAt(src, dst) {
    const pair = this.troubledPairs.find(([from, to]) => from === src && to === dst);
    return pair ? pair[3] ?? Infinity : Infinity;
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

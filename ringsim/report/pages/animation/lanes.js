// The lanes of time: above in each what a rank sends, below what it receives and applies. The part that has not
// happened yet is pale, and so are steps after the one that is shown. All that does not depend on the time is drawn once.

class LanesView {
  constructor(run, parent, onTick) {
    this.run = run;
    this.canvas = makeCanvas(parent, "Timeline of each rank");
    this.canvas.classList.add("clickable");
    const scrub = (event) => event.buttons & 1 && onTick(this.tickAt(event.offsetX));
    this.canvas.addEventListener("pointerdown", (event) => { this.canvas.setPointerCapture(event.pointerId); scrub(event); });
    this.canvas.addEventListener("pointermove", scrub);
    this.still = document.createElement("canvas");
    // For each transfer [row, number of rows] within its rank's half lane, so that what overlaps lies side by side.
    const placed = ([row, counts], ranks) => ranks.map((rank, number) => [row[number], counts[rank]]);
    this.sendRow = placed(run.sendRows, run.src);
    this.receiveRow = placed(run.receiveRows, run.dst);
  }

  tickAt(x) { return Math.min(Math.max((x - this.left) / this.across, 0), 1) * TICKS; }

  x(tick) { return this.left + (Math.min(tick, TICKS) / TICKS) * this.across; }

  measure() {
    const { run } = this;
    this.lane = Math.min(Math.max(420 / run.numRanks, 9), 44);
    this.top = 20;
    this.left = run.numRanks <= FEW_RANKS ? 160 : 62;
    this.height = this.top + this.lane * run.numRanks + 22;
    const { context, width } = prepare(this.canvas, this.height);
    this.context = context;
    this.width = width;
    this.across = width - this.left - 12;
  }

  // key: whatever the still part depends on besides the size.
  draw(tick, chosen, colours, key) {
    this.measure();
    const size = `${key} ${this.canvas.width} ${this.canvas.height}`;
    if (this.stillKey !== size) {
      this.stillKey = size;
      this.drawStill(chosen, colours);
    }
    const { context } = this;
    context.drawImage(this.still, 0, 0, this.width, this.height);
    const now = this.x(tick);
    const { run } = this, isAhead = (_, row) => run.step[row] > run.until && run.start[row] < tick;
    const from = run.src.some(isAhead) ? this.left : now;
    context.globalAlpha = 0.6;
    context.fillStyle = colours.paper;
    context.fillRect(from, this.top - 1, this.left + this.across - from + 2, this.lane * run.numRanks + 2);
    context.globalAlpha = 1;
    if (from < now) this.drawUntil(now, chosen, colours);
    context.fillStyle = colours.ink;
    context.fillRect(now - 0.75, this.top - 4, 1.5, this.lane * this.run.numRanks + 8);
    this.drawNames(tick, colours);
  }

  // The transfers of the steps that are shown, as far as they have happened.
  drawUntil(now, chosen, colours) {
    const { context, run } = this;
    context.save();
    context.beginPath();
    context.rect(this.left, this.top, now - this.left, this.lane * run.numRanks);
    context.clip();
    run.src.forEach((_, row) => run.step[row] <= run.until && this.drawTransfer(context, row, chosen, colours));
    context.restore();
  }

  drawNames(tick, colours) {
    const { run, context } = this;
    const every = Math.ceil(13 / this.lane);
    for (let rank = 0; rank < run.numRanks; rank += every) {
      const y = this.top + (rank + 0.5) * this.lane;
      if (run.numRanks > FEW_RANKS) {
        write(context, `rank ${rank}`, this.left - 6, y, { size: 11, colour: colours.faint, align: "right" });
        continue;
      }
      const { doing, peer, stuck, says } = run.activity(rank, tick);
      const direction = { sends: "to", waits: "for" }[doing] ?? "from";
      const words = says ?? `${doing} ${direction} ${peer}${stuck && doing !== "waits" ? ", hangs" : ""}`;
      write(context, `rank ${rank}`, 0, y, { size: 12, colour: colours.ink, align: "left", bold: true });
      write(context, words, run.numRanks > 10 ? 58 : 52, y, { size: 11, colour: stuck ? colours.vermillion : colours.faint, align: "left" });
    }
  }

  drawStill(chosen, colours) {
    this.still.width = this.canvas.width;
    this.still.height = this.canvas.height;
    const scale = this.canvas.width / this.width, context = this.still.getContext("2d");
    context.setTransform(scale, 0, 0, scale, 0, 0);
    for (let rank = 0; rank < this.run.numRanks; rank++) {
      context.fillStyle = colours.panel;
      context.fillRect(this.left, this.top + rank * this.lane + 1, this.across, this.lane - 2);
    }
    for (let row = 0; row < this.run.numTransfers; row++) this.drawTransfer(context, row, chosen, colours);
    this.drawPhases(context, colours);
    this.drawAxis(context, colours);
  }

  drawTransfer(context, row, chosen, colours) {
    const { run } = this, copies = run.action[row] === COPY;
    if (run.start[row] === Infinity) return;
    context.globalAlpha = chosen === null || chosen === run.chunk[row] ? 1 : 0.12;
    const never = run.applied[row] === Infinity, half = (this.lane - 4) / 2;
    const [from, until] = [this.x(run.start[row]), this.x(run.left[row])];
    const [place, count] = this.sendRow[row];
    const y = this.top + run.src[row] * this.lane + 2 + (half * place) / count;
    context.fillStyle = run.left[row] === Infinity ? colours.vermillion : copies ? colours.sky : colours.blue;
    this.bar(context, from, until, y, half / count);
    if (half / count >= 9 && until - from > 16) {
      const text = until - from > 60 ? `c${run.chunk[row]} → r${run.dst[row]}` : String(run.chunk[row]);
      write(context, text, (from + until) / 2, y + half / count / 2 + 0.5, { size: 10.5, colour: copies && run.left[row] !== Infinity ? colours.ink : "#ffffff" });
    }
    this.drawReceived(context, row, colours, never);
    context.globalAlpha = 1;
  }

  drawReceived(context, row, colours, never) {
    const { run } = this, half = (this.lane - 4) / 2, [place, count] = this.receiveRow[row];
    const y = this.top + run.dst[row] * this.lane + 2 + half + (half * place) / count, height = half / count;
    const alpha = context.globalAlpha;
    context.globalAlpha = alpha * 0.4;
    context.fillStyle = never ? colours.vermillion : colours.faint;
    this.bar(context, this.x(run.start[row]), this.x(never ? TICKS : run.arrived[row]), y + height * 0.35, height * 0.3);
    context.globalAlpha = alpha;
    if (run.apply[row] === Infinity) return;
    context.fillStyle = run.action[row] === COPY ? colours.green : colours.orange;
    const end = this.x(run.applied[row]);
    this.bar(context, Math.min(this.x(run.apply[row]), end - 2.5), end, y, height);
  }

  bar(context, from, until, y, height) {
    const width = until - from;
    context.fillRect(from, y, Math.max(width - (width > 4 ? 1 : 0), 0.6), Math.max(height - (height > 4 ? 1 : 0), 0.6));
  }

  drawPhases(context, colours) {
    const { run } = this;
    for (const { name, first, last } of run.phases) {
      const from = this.x(first ? run.stepEnd[first - 1] : 0), until = this.x(run.stepEnd[last]);
      context.fillStyle = colours.rule;
      if (first) context.fillRect(from - 0.5, 2, 1, this.top + this.lane * run.numRanks);
      const size = [11, 9, 7.5].find((size) => {
        setFont(context, size, true);
        return context.measureText(name).width < until - from - 4;
      });
      if (size) write(context, name, (from + until) / 2, 9, { size, colour: colours.blue, bold: true });
    }
  }

  drawAxis(context, colours) {
    const { firstS, lastS, unit: [scale, unit] } = pageData, bottom = this.top + this.lane * this.run.numRanks + 2;
    for (const value of niceTicks(firstS * scale, lastS * scale)) {
      const x = this.x(((value / scale - firstS) / (lastS - firstS)) * TICKS);
      context.fillStyle = colours.faint;
      context.fillRect(x - 0.5, bottom, 1, 4);
      write(context, `${+value.toPrecision(6)}`, x, bottom + 12, { size: 10.5, colour: colours.faint });
    }
    write(context, `time (${unit})`, this.left - 8, bottom + 12, { size: 10.5, colour: colours.faint, align: "right" });
    if (this.run.end >= TICKS || this.run.stalled.length) return;
    const x = this.x(this.run.end);
    context.fillStyle = colours.green;
    context.fillRect(x - 0.75, this.top, 1.5, this.lane * this.run.numRanks);
    write(context, `done after ${this.run.time}`, x + 6, this.top + 10, { size: 11, colour: colours.green, align: "left", bold: true });
  }
}

function niceTicks(first, last) {
  const rough = (last - first) / 8, power = 10 ** Math.floor(Math.log10(rough));
  const stride = [1, 2, 5, 10].map((factor) => factor * power).find((step) => step >= rough);
  const values = [];
  for (let number = Math.ceil(first / stride); number * stride <= last * 1.0001; number++) values.push(number * stride);
  return values;
}

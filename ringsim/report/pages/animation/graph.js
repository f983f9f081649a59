// The ranks and hosts, the links between them, and the chunks that travel along these.

const FEW_RANKS = 16; // up to so many, ranks and chunks have labels of their own
const CROWDED = 3; // with more messages for each rank, boxes would lie on each other
const MAX_SLOW_LABELS = 8; // of the slowest links; more could not be told apart

class GraphView {
  constructor(run, parent, compact) {
    this.run = run;
    this.compact = compact;
    this.canvas = makeCanvas(parent, "Ranks, and chunks in transit between them");
  }

  measure() {
    const wide = this.canvas.clientWidth || 500;
    const few = this.run.numRanks <= FEW_RANKS; // on a small canvas they may still be too close for boxes
    const height = Math.min(wide * this.aspect(), this.compact ? 380 : 460);
    const { context, width } = prepare(this.canvas, height);
    this.context = context;
    this.size = [width, height];
    // Rings are drawn as circles, the rest fills the canvas.
    const round = this.run.shape === "ring" || this.run.shape === "circle";
    const size = Math.min(few ? width - 90 : width, height); // words stand left and right of a circle
    const beside = this.run.shape === "tree" ? 60 : 0; // where the words of the last leaf stand
    const [across, down] = round ? [size, size] : [width - beside, height];
    const [left, top] = [(width - across - beside) / 2, (height - down) / 2];
    this.middle = [width / 2, height / 2];
    this.round = round;
    const onCanvas = ([x, y]) => [left + x * across, top + y * down];
    this.place = this.run.places.map(onCanvas);
    this.boxes = this.run.hosts.map(([name, x0, y0, x1, y1]) => [name, left + x0 * across, top + y0 * down, left + x1 * across, top + y1 * down]);
    const closest = this.closest();
    this.few = few && closest >= 38;
    this.radius = Math.max(4, Math.min(few ? 24 : 12, closest * (few ? 0.2 : 0.34)));
    this.chunkWidth = Math.max(18, Math.min(52, closest * 0.34));
    this.spelled = few && closest > 75; // there is room for words beside a rank
    this.bend = new Map(this.run.pairs.map((pair, number) => [pair.join(" "), onCanvas(this.run.bends[number])]));
  }

  aspect() {
    const { shape, hosts } = this.run;
    if (shape !== "hosts") return shape === "tree" ? 0.75 : 0.9;
    const rows = new Set(hosts.map((host) => host[2])).size, columns = new Set(hosts.map((host) => host[1])).size;
    return (0.9 * rows) / columns;
  }

  closest() {
    let least = Infinity;
    for (let i = 0; i < this.place.length; i++) {
      for (let j = 0; j < i; j++) least = Math.min(least, distance(this.place[i], this.place[j]));
    }
    return least === Infinity ? 80 : least;
  }

  // Links are quadratic Bezier curves.
  pointOn(src, dst, share) {
    const [from, via, to] = [this.place[src], this.bend.get(`${src} ${dst}`), this.place[dst]];
    return [0, 1].map((axis) => (1 - share) ** 2 * from[axis] + 2 * share * (1 - share) * via[axis] + share ** 2 * to[axis]);
  }

  draw(tick, chosen, colours) {
    this.measure();
    this.colours = colours;
    this.drawHosts();
    this.drawLinks(tick);
    this.drawMessages(tick, chosen);
    // Above the chunks, which would hide the numbers of ranks that are close to one another.
    for (let rank = 0; rank < this.run.numRanks; rank++) this.drawRank(rank, tick);
    if (this.few) this.labelSlow();
  }

  drawHosts() {
    const { context, colours } = this;
    for (const [name, left, top, right, bottom] of this.boxes) {
      context.fillStyle = colours.panel;
      context.strokeStyle = colours.rule;
      context.lineWidth = 1;
      context.beginPath();
      context.roundRect(left, top, right - left, bottom - top, 8);
      context.fill();
      context.stroke();
      write(context, name, left + 8, top + 11, { size: 11, colour: colours.faint, align: "left" });
    }
  }

  drawLinks(tick) {
    const { context, colours, run } = this;
    const faint = run.pairs.length > 150 ? 0.25 : 0.9;
    this.slow = [];
    for (const [src, dst] of run.pairs) {
      const trouble = run.troubledPairs.find(([from, to]) => from === src && to === dst);
      const failed = trouble && trouble[3] !== null && tick >= trouble[3];
      const slow = trouble && trouble[2] > 1.05;
      context.globalAlpha = trouble ? 1 : faint;
      context.strokeStyle = failed || slow ? colours.vermillion : colours.rule;
      context.lineWidth = failed || slow ? 2.5 : 1.5;
      context.setLineDash(failed || slow ? [6, 5] : []);
      context.beginPath();
      context.moveTo(...this.place[src]);
      context.quadraticCurveTo(...this.bend.get(`${src} ${dst}`), ...this.place[dst]);
      context.stroke();
      context.setLineDash([]);
      context.globalAlpha = 1;
      if (failed) drawCross(context, ...this.pointOn(src, dst, 0.5), this.few ? 16 : 10, colours.vermillion);
      else if (slow) this.slow.push([src, dst, trouble[2]]);
    }
  }

  // The slowest first. One that has room nowhere along its link is left out: dashes say without it that it is slow.
  labelSlow() {
    const style = { size: 11, colour: this.colours.vermillion, bold: true, halo: this.colours.paper };
    const taken = this.place.flatMap(([x, y]) => [
      boxAround(x, y, 2 * this.radius + 4, 2 * this.radius + 4),
      ...(this.spelled && !this.round ? [boxAround(x, y + this.radius + 9, 60, 14)] : []), // the words below a rank
    ]);
    taken.push(...this.boxes.map(([name, left, top]) => boxAround(left + 8 + name.length * 3.5, top + 11, name.length * 7, 14)));
    this.labels = [];
    const told = new Set(); // of a link that is as slow in both directions one label is enough
    for (const [src, dst, slowdown] of this.slow.slice().sort((a, b) => b[2] - a[2])) {
      const text = `${slowdown >= 9.95 ? Math.round(slowdown) : slowdown.toFixed(1)}× slower`;
      const link = `${Math.min(src, dst)} ${Math.max(src, dst)} ${text}`;
      if (told.has(link) || told.size === MAX_SLOW_LABELS) continue;
      setFont(this.context, style.size, true);
      const box = this.placesBeside(src, dst, this.context.measureText(text).width + 4).find((place) => this.isInside(place) && !taken.some((other) => overlap(place, other)));
      if (!box) continue;
      told.add(link);
      taken.push(box);
      this.labels.push(box);
      write(this.context, text, (box.left + box.right) / 2, (box.top + box.bottom) / 2, style);
    }
  }

  // Beside the middle of the link, then elsewhere along it; on the side of the middle of the canvas first.
  placesBeside(src, dst, width) {
    const [from, to] = [this.place[src], this.place[dst]], length = distance(from, to) || 1;
    let normal = [(to[1] - from[1]) / length, (from[0] - to[0]) / length];
    const middle = this.pointOn(src, dst, 0.5);
    if (normal[0] * (this.size[0] / 2 - middle[0]) + normal[1] * (this.size[1] / 2 - middle[1]) < 0) normal = [-normal[0], -normal[1]];
    const height = 14, out = Math.abs(normal[0]) * width / 2 + Math.abs(normal[1]) * height / 2 + 3;
    return [0.5, 0.38, 0.62, 0.26, 0.74].flatMap((share) => [1, -1].map((side) => {
      const [x, y] = this.pointOn(src, dst, share);
      return boxAround(x + side * normal[0] * out, y + side * normal[1] * out, width, height);
    }));
  }

  isInside({ left, top, right, bottom }) { return left >= 0 && top >= 0 && right <= this.size[0] && bottom <= this.size[1]; }

  drawRank(rank, tick) {
    const { context, colours, run, radius } = this;
    const [x, y] = this.place[rank];
    const { doing, stuck, peer } = run.activity(rank, tick);
    const trouble = run.troubledRanks.find(([its]) => its === rank);
    const failed = trouble && trouble[2] !== null && tick >= trouble[2];
    context.fillStyle = colours.paper;
    context.beginPath();
    context.arc(x, y, radius, 0, 2 * Math.PI);
    context.fill();
    context.globalAlpha = doing === "waits" ? 0.45 : 1;
    context.strokeStyle = failed || stuck ? colours.vermillion : run.colours[rank];
    context.lineWidth = Math.max(2, radius / 5);
    context.setLineDash(doing === "waits" ? [4, 3] : []);
    context.stroke();
    context.setLineDash([]);
    context.globalAlpha = 1;
    if (failed) drawCross(context, x, y, radius * 1.5, colours.vermillion);
    const halo = failed ? colours.paper : undefined; // so that the number can be read on the cross
    if (radius >= 7) write(context, String(rank), x, y, { size: Math.min(15, radius), colour: colours.ink, bold: true, halo });
    else if (rank % 8 === 0) this.label(rank, String(rank), { size: 11, colour: colours.faint });
    const slow = failed ? "failed" : trouble && trouble[1] > 1 ? `${trouble[1]}× slower` : "";
    const wrong = failed ? slow : stuck && doing === "waits" ? `waits for ${peer}` : stuck ? "hangs" : slow;
    if (wrong && this.spelled) this.label(rank, wrong, { size: 11, colour: colours.vermillion, bold: true });
    else if (doing === "waits" && this.spelled) this.label(rank, `waits for ${peer}`, { size: 11, colour: colours.faint });
    else if (doing === "done" && this.few) drawTick(context, x + radius * 0.9, y - radius * 0.9, 12, colours.green);
  }

  // Beside a rank: outside of a circle, beside the branches of a tree, elsewhere below it.
  label(rank, text, words) {
    const style = { ...words, halo: this.boxes.length ? this.colours.panel : this.colours.paper }; // chunks pass below
    const [x, y] = this.place[rank];
    if (this.run.shape === "tree") {
      write(this.context, text, x + this.radius + 7, y, { ...style, align: "left" });
      return;
    }
    if (!this.round) {
      write(this.context, text, x, y + this.radius + 9, style);
      return;
    }
    const [right, down] = [0, 1].map((axis) => (this.place[rank][axis] - this.middle[axis]) / (distance(this.place[rank], this.middle) || 1));
    const align = right > 0.35 ? "left" : right < -0.35 ? "right" : "center";
    write(this.context, text, x + right * (this.radius + 7), y + down * (this.radius + 11), { ...style, align });
  }

  drawMessages(tick, chosen) {
    const { run } = this, rows = [];
    for (let row = 0; row < run.numTransfers; row++) {
      const state = run.stateOf(row, tick), isSeen = state === "moving" || (state === "never" && run.start[row] < Infinity);
      if (isSeen && (chosen === null || run.chunk[row] === chosen)) rows.push(row);
    }
    const crowded = rows.length > CROWDED * run.numRanks;
    for (const row of rows) {
      const [src, dst] = [run.src[row], run.dst[row]];
      const never = run.arrived[row] === Infinity;
      const length = run.arrived[row] - run.start[row];
      const share = never ? 0.3 : tick >= run.arrived[row] || length <= 0 ? 1 : (tick - run.start[row]) / length;
      // Chunks are seen on the link, from the rim of one rank to that of the other.
      const rim = Math.min(0.32, (this.radius + (this.few ? this.chunkWidth / 3 : 0)) / (distance(this.place[src], this.place[dst]) || 1));
      this.drawChunk(row, this.pointOn(src, dst, rim + share * (1 - 2 * rim)), never && tick >= run.end, crowded);
    }
  }

  drawChunk(row, [x, y], stopped, crowded) {
    const { context, colours, run } = this;
    const edge = stopped ? colours.vermillion : run.action[row] === COPY ? colours.green : colours.ink;
    if (!this.few || crowded) {
      context.fillStyle = stopped ? colours.vermillion : run.action[row] === COPY ? colours.green : colours.blue;
      context.beginPath();
      context.arc(x, y, Math.max(2.5, this.radius * 0.4), 0, 2 * Math.PI);
      context.fill();
      return;
    }
    const width = this.chunkWidth, height = width * 0.64;
    context.fillStyle = colours.paper;
    context.fillRect(x - width / 2, y - height / 2, width, height);
    drawContent(context, run, run.message[row], x - width / 2, y, width, height * 0.5);
    write(context, String(run.chunk[row]), x, y - height * 0.22, { size: height * 0.46, colour: colours.ink, bold: true });
    context.strokeStyle = edge;
    context.lineWidth = stopped ? 2.5 : 1.5;
    context.strokeRect(x - width / 2, y - height / 2, width, height);
  }
}

function boxAround(x, y, width, height) {
  return { left: x - width / 2, top: y - height / 2, right: x + width / 2, bottom: y + height / 2 };
}

function overlap(one, other) {
  return one.left < other.right && other.left < one.right && one.top < other.bottom && other.top < one.bottom;
}

function distance([x0, y0], [x1, y1]) { return Math.hypot(x1 - x0, y1 - y0); }

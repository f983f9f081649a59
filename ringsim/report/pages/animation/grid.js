// What each rank holds of each chunk: a stripe for each contributor, or a shade where stripes would be too thin.

class GridView {
  constructor(run, parent, onChunk) {
    this.run = run;
    this.canvas = makeCanvas(parent, "Contributions that each rank holds of each chunk");
    this.canvas.classList.add("clickable");
    this.canvas.addEventListener("click", (event) => onChunk(this.chunkAt(event.offsetX)));
  }

  chunkAt(x) {
    const chunk = Math.floor((x - this.left) / this.cellWidth);
    return chunk >= 0 && chunk < this.run.numChunks ? chunk : null;
  }

  measure() {
    const { run } = this;
    this.left = run.numRanks <= 32 ? 52 : 30;
    this.top = 20;
    const rows = Math.min(Math.max(400 / run.numRanks, 6), 64);
    const { context, width } = prepare(this.canvas, this.top + rows * run.numRanks + 4);
    this.context = context;
    this.cellHeight = rows;
    this.cellWidth = Math.min((width - this.left - 4) / run.numChunks, 220);
    this.striped = this.cellWidth / run.numRanks >= 2 && run.reduces;
    this.counted = this.cellWidth >= 22 && this.cellHeight >= 22;
  }

  draw(tick, chosen, colours) {
    this.measure();
    this.colours = colours;
    this.drawNames(chosen);
    const step = this.run.stepAt(tick);
    for (let rank = 0; rank < this.run.numRanks; rank++) {
      for (let chunk = 0; chunk < this.run.numChunks; chunk++) {
        this.context.globalAlpha = chosen === null || chosen === chunk ? 1 : 0.22;
        this.drawCell(rank, chunk, tick, step);
      }
    }
    this.context.globalAlpha = 1;
  }

  drawNames(chosen) {
    const { context, colours, run } = this;
    setFont(context, 11, true);
    const widest = context.measureText(String(run.numChunks - 1)).width + 4;
    const everyRank = Math.ceil(12 / this.cellHeight), everyChunk = Math.ceil(widest / this.cellWidth);
    for (let rank = 0; rank < run.numRanks; rank += everyRank) {
      const text = run.numRanks <= 32 ? `rank ${rank}` : String(rank);
      write(context, text, this.left - 6, this.top + (rank + 0.5) * this.cellHeight, { size: 11, colour: colours.faint, align: "right" });
    }
    for (let chunk = 0; chunk < run.numChunks; chunk += everyChunk) {
      const text = this.cellWidth >= 52 ? `chunk ${chunk}` : String(chunk);
      write(context, text, this.left + (chunk + 0.5) * this.cellWidth, this.top - 9, { size: 11, colour: chosen === chunk ? colours.ink : colours.faint, bold: chosen === chunk });
    }
  }

  drawCell(rank, chunk, tick, step) {
    const { context, colours, run } = this;
    const gap = this.cellWidth > 12 && this.cellHeight > 12 ? 2 : 0.5;
    const [x, y] = [this.left + chunk * this.cellWidth + gap, this.top + rank * this.cellHeight + gap];
    const [width, height] = [this.cellWidth - 2 * gap, this.cellHeight - 2 * gap];
    const cell = run.cell(rank, chunk), row = run.lastWrite(cell, tick);
    const mask = row === NOTHING ? run.own[cell] : run.result[row];
    const complete = mask && run.isComplete(cell, row), count = run.countOf(cell, row);
    context.fillStyle = colours.panel;
    context.fillRect(x, y, width, height);
    if (this.striped) this.drawStriped(mask, count, complete, x, y, width, height);
    else this.drawShaded(count, complete, x, y, width, height);
    const fresh = row !== NOTHING && run.step[row] === step;
    if (gap === 2) {
      context.strokeStyle = complete ? colours.green : fresh ? colours.ink : colours.rule;
      context.lineWidth = complete ? 2.5 : fresh ? 2 : 1;
      context.strokeRect(x, y, width, height);
    }
  }

  drawStriped(mask, count, complete, x, y, width, height) {
    const { context, colours, run } = this;
    const above = this.counted ? Math.min(15, height * 0.45) : 0;
    drawStripes(context, mask, run.colours, x, y + above, width, height - above);
    if (!this.counted || !mask) return;
    write(context, String(count), x + width / 2 - (complete ? 7 : 0), y + above / 2 + 0.5, { size: Math.min(12, above), colour: complete ? colours.green : colours.faint, bold: complete });
    if (complete) drawTick(context, x + width / 2 + 7, y + above / 2, 10, colours.green);
  }

  // The darker the more shares; complete ones are green.
  drawShaded(count, complete, x, y, width, height) {
    const { context, colours, run } = this;
    if (!count) return;
    const alpha = context.globalAlpha;
    context.globalAlpha = alpha * (complete ? 1 : 0.12 + 0.75 * (count / run.needed));
    context.fillStyle = complete ? colours.green : colours.blue;
    context.fillRect(x, y, width, height);
    context.globalAlpha = alpha;
    if (complete && this.counted) drawTick(context, x + width / 2, y + height / 2, 12, colours.paper);
  }
}

// Drives the page of an animation, and keeps what it shows in `log`.
// A browser without a window draws no frame at all if the machine is busy: they are called by hand, one each 100 ms.
const due = [], timers = [], log = []; let now = 0, boxes = [];
window.requestAnimationFrame = (frame) => due.push(frame);
window.setTimeout = (call) => timers.push(call);

const frames = (number) => { for (; number > 0 && due.length; number--) due.shift()((now += 100)); };
const press = (key) => document.dispatchEvent(new KeyboardEvent('keydown', { key }));

const drawChunk = GraphView.prototype.drawChunk;
GraphView.prototype.drawChunk = function (row, ...rest) {
  boxes.push([this.run, row]);
  drawChunk.call(this, row, ...rest);
};

// Of each run its step, the steps of the chunks in transit in the circle, and the states of the transfers in words.
const views = () => {
  boxes = [];
  player.draw();
  return player.sections.map(({ run, element }) => [
    +/step ([0-9]+) of/.exec(element.querySelector('.phase').textContent)[1],
    boxes.filter(([its]) => its === run).map(([, row]) => run.step[row] + 1),
    [...element.querySelectorAll('.transfers li')].map((item) => item.className),
  ]);
};

const keep = () => log.push([player.tick, document.getElementById("play").textContent.trim()]);

function stepThrough() {
  for (let step = 0; step < player.steps; step++) {
    press("ArrowRight");
    frames(4);
    log.push([player.playing, views()]);
    frames(20);
    log.push([player.playing, views()]);
  }
}

function pressKeys() {
  log.push(player.longest().stepEnd);
  for (const key of ["ArrowRight", "ArrowRight", "ArrowRight", "ArrowLeft", "End", "ArrowLeft", "Home", " ", " "]) {
    press(key);
    frames(2);
    keep();
  }
  press("Home");
  Object.defineProperty(player.stillness, "matches", { value: true });
  for (const act of [() => press("ArrowRight"), () => press(" "), () => timers.shift()()]) {
    act();
    keep();
  }
}


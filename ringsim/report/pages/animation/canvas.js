// What the three views share: canvases that are sharp and as wide as their place, colours of the theme, small shapes.

function makeCanvas(parent, label) {
  const canvas = document.createElement("canvas");
  canvas.setAttribute("role", "img");
  canvas.setAttribute("aria-label", label);
  parent.append(canvas);
  return canvas;
}

// Gives the canvas `height` CSS pixels and returns its context and width; drawing is in CSS pixels.
function prepare(canvas, height) {
  const scale = window.devicePixelRatio || 1, width = canvas.clientWidth || 600;
  const [across, down] = [Math.round(width * scale), Math.round(height * scale)];
  if (canvas.width !== across || canvas.height !== down) {
    canvas.width = across;
    canvas.height = down;
    canvas.style.height = `${height}px`;
  }
  const context = canvas.getContext("2d");
  context.setTransform(scale, 0, 0, scale, 0, 0);
  context.clearRect(0, 0, width, height);
  return { context, width };
}

function themeColours() {
  const style = getComputedStyle(document.documentElement);
  const names = ["paper", "ink", "faint", "rule", "panel", "blue", "sky", "orange", "vermillion", "green"];
  return Object.fromEntries(names.map((name) => [name, style.getPropertyValue(`--${name}`).trim()]));
}

function setFont(context, size, bold = false) {
  context.font = `${bold ? "600 " : ""}${size}px system-ui, -apple-system, "Segoe UI", "DejaVu Sans", sans-serif`;
}

function write(context, text, x, y, { size = 12, colour, align = "center", bold = false, halo = null } = {}) {
  setFont(context, size, bold);
  context.fillStyle = colour;
  context.textAlign = align;
  context.textBaseline = "middle";
  if (halo) {
    context.strokeStyle = halo;
    context.lineWidth = 3;
    context.lineJoin = "round";
    context.strokeText(text, x, y);
  }
  context.fillText(text, x, y);
}

// A stripe for each rank whose share is in it, in the place of that rank; the others' places stay empty.
function drawStripes(context, mask, colours, x, y, width, height) {
  const stripe = width / colours.length;
  for (let rank = 0; rank < colours.length; rank++) {
    if (!((mask >> BigInt(rank)) & 1n)) continue;
    context.fillStyle = colours[rank];
    context.fillRect(x + rank * stripe, y, stripe + 0.3, height);
  }
}

// What a chunk holds; where nothing is summed it is all one rank's.
function drawContent(context, run, mask, x, y, width, height) {
  if (run.reduces) return drawStripes(context, mask, run.colours, x, y, width, height);
  context.fillStyle = run.colours[run.colours.findIndex((_, rank) => (mask >> BigInt(rank)) & 1n)];
  return context.fillRect(x, y, width, height);
}

function drawTick(context, x, y, size, colour) {
  context.strokeStyle = colour;
  context.lineWidth = Math.max(1.5, size / 6);
  context.beginPath();
  context.moveTo(x - size / 2, y);
  context.lineTo(x - size / 8, y + size / 3);
  context.lineTo(x + size / 2, y - size / 3);
  context.stroke();
}

function drawCross(context, x, y, size, colour) {
  context.strokeStyle = colour;
  context.lineWidth = Math.max(2, size / 5);
  context.beginPath();
  context.moveTo(x - size / 2, y - size / 2);
  context.lineTo(x + size / 2, y + size / 2);
  context.moveTo(x + size / 2, y - size / 2);
  context.lineTo(x - size / 2, y + size / 2);
  context.stroke();
}

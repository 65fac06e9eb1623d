// Birds drawn in the browser, each a little different: something to try the page with, free of anybody's rights.

export const SIDE = 320; // pixels

export const SPECIES = {
  Robin: { back: "#8b6b4e", wing: "#735741", breast: "#e0602a", belly: "#f4ecdc", cap: "#8b6b4e", face: "#e0602a", bill: 20 },
  "Blue tit": { back: "#7d9c58", wing: "#4b84c4", breast: "#f3d24a", belly: "#f7e48c", cap: "#3a78c8", face: "#fbfbf6", bill: 13, line: "#22304f" },
  Chaffinch: { back: "#7d6350", wing: "#4e453f", breast: "#d68a6e", belly: "#ecc9b4", cap: "#7f93a6", face: "#cf8468", bill: 17, bar: true },
  "Young chaffinch": { back: "#7f6450", wing: "#54483f", breast: "#d88464", belly: "#edceba", cap: "#818d99", face: "#d27f5f", bill: 18 },
  Kingfisher: { back: "#1597b5", wing: "#0d7596", breast: "#ee8634", belly: "#f2a052", cap: "#0f86a8", face: "#f0b070", bill: 62, tail: 0.6 },
};

/** Draw a bird of a species on a canvas of SIDE × SIDE units; the seed chooses pose, light and leaves. */
export function drawBird(context, species, seed) {
  const random = randomFrom(seed);
  const between = (low, high) => low + (high - low) * random();
  context.save();
  drawSky(context, between);
  if (random() < 0.5) {
    context.translate(SIDE, 0);
    context.scale(-1, 1);
  }
  const scale = between(0.84, 1.04);
  context.translate(SIDE / 2 + between(-14, 14), SIDE / 2 + between(-8, 12));
  context.scale(scale, scale);
  context.translate(-SIDE / 2, -SIDE / 2);
  drawBranch(context, between);
  drawBody(context, SPECIES[species], between);
  context.restore();
}

/** Return a picture of a bird as a file. */
export async function birdPicture(species, seed) {
  const canvas = document.createElement("canvas");
  canvas.width = SIDE;
  canvas.height = SIDE;
  drawBird(canvas.getContext("2d"), species, seed);
  const blob = await new Promise((resolve) => canvas.toBlob(resolve, "image/jpeg", 0.9));
  return new File([blob], `${species.toLowerCase().replaceAll(" ", "-")}-${seed}.jpg`, { type: "image/jpeg" });
}

function drawSky(context, between) {
  const hue = between(95, 215);
  const sky = context.createLinearGradient(0, 0, 0, SIDE);
  sky.addColorStop(0, `hsl(${hue} 45% 86%)`);
  sky.addColorStop(1, `hsl(${hue - 20} 38% 72%)`);
  context.fillStyle = sky;
  context.fillRect(0, 0, SIDE, SIDE);
  for (let i = 0; i < 7; i += 1) {
    // leaves far away, out of focus
    context.fillStyle = `hsl(${between(80, 140)} 35% ${between(62, 82)}% / 45%)`;
    disc(context, between(0, SIDE), between(0, SIDE), between(18, 60));
  }
}

function drawBranch(context, between) {
  const bend = between(-14, 14);
  context.strokeStyle = "#6b5238";
  context.lineCap = "round";
  context.lineWidth = between(10, 15);
  context.beginPath();
  context.moveTo(-60, 274 + bend);
  context.quadraticCurveTo(150, 262, 390, 276 - bend);
  context.stroke();
  for (let i = 0; i < 4; i += 1) {
    context.save();
    context.translate(between(-20, 330), 270 + between(-8, 8));
    context.rotate(between(-1.2, 1.2) + (i % 2 ? 0 : Math.PI));
    context.fillStyle = `hsl(${between(85, 135)} 42% ${between(34, 48)}%)`;
    oval(context, 20, 0, 22, 9, 0);
    context.restore();
  }
}

function drawBody(context, look, between) {
  legs(context);
  context.save();
  context.translate(150, 180);
  context.rotate(between(-0.12, 0.12));
  context.translate(-150, -180);
  tail(context, look);
  context.save();
  clipped(context, () => context.ellipse(150, 180, 86, 58, -0.42, 0, 2 * Math.PI));
  context.fillStyle = look.back;
  context.fillRect(0, 0, SIDE, SIDE);
  context.fillStyle = look.belly;
  oval(context, 168, 226, 92, 46, -0.35);
  context.fillStyle = look.breast;
  oval(context, 214, 178, 50, 58, -0.3);
  context.restore();
  head(context, look, between);
  wing(context, look);
  context.restore();
}

function legs(context) {
  context.strokeStyle = "#4b3a30";
  context.lineWidth = 4;
  for (const x of [142, 164]) {
    context.beginPath();
    context.moveTo(x, 225);
    context.lineTo(x + 6, 268);
    context.stroke();
  }
}

function tail(context, look) {
  const long = 62 * (look.tail ?? 1);
  context.fillStyle = look.wing;
  context.beginPath();
  context.moveTo(96, 186);
  context.lineTo(84 - long, 232 + long * 0.3);
  context.lineTo(100 - long, 246 + long * 0.35);
  context.lineTo(122, 222);
  context.fill();
}

function head(context, look, between) {
  const nod = between(-5, 5);
  context.save();
  context.translate(0, nod);
  context.fillStyle = "#37322e";
  context.beginPath();
  context.moveTo(238, 106);
  context.lineTo(244 + look.bill, 119);
  context.lineTo(238, 126);
  context.fill();
  context.save();
  clipped(context, () => context.arc(206, 118, 43, 0, 2 * Math.PI));
  context.fillStyle = look.cap;
  context.fillRect(150, 60, 120, 120);
  context.fillStyle = look.face;
  oval(context, 228, 128, 34, 25, 0.1);
  if (look.line) {
    context.fillStyle = look.line;
    oval(context, 214, 111, 44, 5, 0.06);
  }
  context.restore();
  context.fillStyle = "#15130f";
  disc(context, 220, 110, 7);
  context.fillStyle = "#fff";
  disc(context, 222.5, 107.5, 2.2);
  context.restore();
}

function wing(context, look) {
  context.fillStyle = look.wing;
  oval(context, 128, 182, 70, 33, -0.28);
  context.strokeStyle = "rgb(255 255 255 / 28%)";
  context.lineWidth = 3;
  if (look.bar) {
    context.fillStyle = "#f7f3ea";
    oval(context, 148, 168, 30, 6, 0.5);
  }
  for (let i = 0; i < 3; i += 1) {
    context.beginPath();
    context.ellipse(124 - 8 * i, 186 + 3 * i, 56 - 12 * i, 22 - 5 * i, -0.28, 0.3, 2.2);
    context.stroke();
  }
}

function clipped(context, outline) {
  context.beginPath();
  outline();
  context.clip();
}

function disc(context, x, y, radius) {
  oval(context, x, y, radius, radius, 0);
}

function oval(context, x, y, wide, high, turn) {
  context.beginPath();
  context.ellipse(x, y, wide, high, turn, 0, 2 * Math.PI);
  context.fill();
}

/** Return a generator of numbers in [0, 1), the same for the same seed (mulberry32). */
function randomFrom(seed) {
  let state = (seed * 2654435761) | 0;
  return () => {
    state = (state + 0x6d2b79f5) | 0;
    let mixed = Math.imul(state ^ (state >>> 15), 1 | state);
    mixed = (mixed + Math.imul(mixed ^ (mixed >>> 7), 61 | mixed)) ^ mixed;
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 4294967296;
  };
}

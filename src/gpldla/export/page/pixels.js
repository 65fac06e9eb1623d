// Pictures as the network was taught with them: resized as Pillow resizes, but for the last bit.
// (Pillow 13 resizes columns before rows for some shapes, earlier versions never; here rows come first.)

const PRECISION = 2 ** 22; // of Pillow's fixed-point weights
const REDUCING_GAP = 3; // pictures are averaged in whole blocks down to this times the side, then resized

const FILTERS = {
  bilinear: { support: 1, weight: (x) => Math.max(0, 1 - Math.abs(x)) },
  bicubic: {
    support: 2,
    weight(x) {
      const a = -0.5;
      x = Math.abs(x);
      if (x < 1) return ((a + 2) * x - (a + 3)) * x * x + 1;
      return x < 2 ? (((x - 5) * x + 8) * x - 4) * a : 0;
    },
  },
};

/** For each output pixel: the first input pixel, and the weights; `length` input pixels count, which need not be whole. */
function resizeWeights(size, length, output, { support, weight }) {
  const scale = length / output;
  const wide = Math.max(scale, 1);
  const reach = support * wide;
  return Array.from({ length: output }, (_, i) => {
    const centre = (i + 0.5) * scale;
    const first = Math.max(0, Math.trunc(centre - reach + 0.5));
    const last = Math.min(size, Math.trunc(centre + reach + 0.5));
    const raw = Array.from({ length: last - first }, (_, k) => weight((k + first - centre + 0.5) * (1 / wide)));
    const share = 1 / raw.reduce((a, b) => a + b, 0);
    return { first, weights: raw.map((w) => roundAway(w * share * PRECISION)) };
  });
}

function roundAway(x) {
  return x < 0 ? Math.trunc(x - 0.5) : Math.trunc(x + 0.5);
}

/** Resize rows, or columns, of values [height, width, channels]; returns the same kind of object. */
function resizeAxis({ data, width, height, channels }, horizontal, all) {
  const lines = horizontal ? height : width;
  const step = horizontal ? channels : width * channels;
  const out = { width: horizontal ? all.length : width, height: horizontal ? height : all.length, channels };
  out.data = new Uint8Array(out.width * out.height * channels);
  const outStep = horizontal ? channels : out.width * channels;
  for (let line = 0; line < lines; line++) {
    const start = line * (horizontal ? width * channels : channels);
    const outStart = line * (horizontal ? out.width * channels : channels);
    all.forEach(({ first, weights }, i) => {
      for (let c = 0; c < channels; c++) {
        let sum = PRECISION / 2;
        let place = start + first * step + c;
        for (const weight of weights) {
          sum += data[place] * weight;
          place += step;
        }
        out.data[outStart + i * outStep + c] = Math.min(255, Math.max(0, Math.floor(sum / PRECISION)));
      }
    });
  }
  return out;
}

/** Average blocks of fx × fy pixels; those at the right and at the bottom may be smaller. */
function reduceBlocks({ data, width, height, channels }, fx, fy) {
  const out = { width: Math.ceil(width / fx), height: Math.ceil(height / fy), channels };
  out.data = new Uint8Array(out.width * out.height * channels);
  for (let y = 0; y < out.height; y++) {
    for (let x = 0; x < out.width; x++) {
      const right = Math.min(width, (x + 1) * fx);
      const bottom = Math.min(height, (y + 1) * fy);
      const count = (right - x * fx) * (bottom - y * fy);
      const multiplier = Math.trunc(Math.fround(2 ** 24 / count)); // Pillow divides by multiplying
      for (let c = 0; c < channels; c++) {
        let sum = count >> 1;
        for (let v = y * fy; v < bottom; v++) {
          for (let u = x * fx; u < right; u++) sum += data[(v * width + u) * channels + c];
        }
        out.data[(y * out.width + x) * channels + c] = Math.floor((sum * multiplier) / 2 ** 24);
      }
    }
  }
  return out;
}

/** Resize values [height, width, channels] to another size. */
function resizePixels(picture, width, height, { interpolation = "bilinear", reading = 1 }) {
  const filter = FILTERS[interpolation];
  const factor = (length, output) => Math.max(1, Math.trunc(length / output / REDUCING_GAP));
  const [fx, fy] = reading >= 2 ? [factor(picture.width, width), factor(picture.height, height)] : [1, 1];
  const small = fx > 1 || fy > 1 ? reduceBlocks(picture, fx, fy) : picture;
  const [across, down] = [picture.width / fx, picture.height / fy];
  let resized = small;
  if (across !== width) resized = resizeAxis(resized, true, resizeWeights(small.width, across, width, filter));
  if (down !== height) resized = resizeAxis(resized, false, resizeWeights(small.height, down, height, filter));
  return resized;
}

/** Return the pixels that the graph takes, [side, side, channels], of RGBA values. */
function squarePixels(rgba, width, height, facts) {
  const { resized: side, size, keep_aspect: keepAspect } = facts;
  const picture = flattened(rgba, width, height, facts.mode === "L" ? 1 : 3);
  if (width === side && height === side) return picture.data;
  if (!keepAspect || width === height) return resizePixels(picture, side, side, facts).data;
  const shorter = Math.min(width, height);
  const [w, h] = [width, height].map((length) => Math.floor((side * length) / shorter));
  const [left, top] = [w, h].map((length) => Math.floor((length - size) / 2) - Math.floor((side - size) / 2));
  const whole = resizePixels(picture, w, h, facts);
  const { channels } = whole;
  const cut = new Uint8Array(side * side * channels);
  for (let y = 0; y < side; y++) {
    const start = ((y + top) * w + left) * channels;
    cut.set(whole.data.subarray(start, start + side * channels), y * side * channels);
  }
  return cut;
}

/** Put transparent pixels on white, and make them grey if there is one channel, as Pillow does. */
function flattened(rgba, width, height, channels) {
  const data = new Uint8Array(width * height * channels);
  const on = (value, alpha) => Math.round((value * alpha + 255 * (255 - alpha)) / 255);
  for (let i = 0; i < width * height; i++) {
    const [r, g, b] = [0, 1, 2].map((c) => on(rgba[4 * i + c], rgba[4 * i + 3]));
    if (channels === 3) data.set([r, g, b], 3 * i);
    else data[i] = (r * 19595 + g * 38470 + b * 7471 + 0x8000) >> 16;
  }
  return { data, width, height, channels };
}

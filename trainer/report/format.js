// SPDX-License-Identifier: Apache-2.0
//
// Numbers as text, and a few sums.

const clamp = (x, low, high) => Math.min(high, Math.max(low, x));
const sum = (numbers) => numbers.reduce((a, b) => a + b, 0);
const integer = (n) => Math.round(n).toLocaleString('en-US');
const threeDigits = (n) => integer(Number(n.toPrecision(3)));
const space = '\u202f';  // thin, and does not break
const sentence = (text) => text.charAt(0).toUpperCase() + text.slice(1).replace(/\.$/, '') + '.';

// Decimal units, as in the paper.
function bytes(n, digits) {
  const size = Math.abs(n);
  const [divisor, unit] = size >= 1e9 ? [1e9, 'GB'] :
      size >= 1e6                     ? [1e6, 'MB'] :
      size >= 1e3                     ? [1e3, 'kB'] :
                                        [1, 'B'];
  const value = n / divisor;
  if (divisor === 1) return integer(value) + space + unit;
  return value.toFixed(digits ?? (Math.abs(value) >= 100 ? 0 : 1)) + space + unit;
}

function milliseconds(ns) {
  const ms = ns / 1e6;
  return ms.toFixed(ms >= 100 ? 0 : ms >= 1 ? 1 : 2) + space + 'ms';
}

function millions(n) {
  if (n >= 1e9) return (n / 1e9).toFixed(2) + 'B';
  return n >= 1e6 ? (n / 1e6).toFixed(1) + 'M' : integer(n);
}

const percent = (part, all) => (all > 0 ? part / all * 100 : 0).toFixed(1) + '%';

// Round numbers from 0 to `max`, about `count` of them.
function ticks(max, count) {
  if (!(max > 0)) return [0];
  const raw = max / count;
  const magnitude = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 2.5, 5, 10].find((s) => s * magnitude >= raw * 0.999) * magnitude;
  return Array.from({length: Math.floor(max / step + 1e-9) + 1}, (_, i) => i * step);
}

// Index of the last of `sorted` numbers that is <= x; 0 if none is.
function lastNotAfter(sorted, x) {
  let low = 0;
  let high = sorted.length - 1;
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (sorted[middle] <= x) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return low;
}

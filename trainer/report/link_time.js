// SPDX-License-Identifier: Apache-2.0
//
// Charts over the time of the step. They share their left and right margins, so that a vertical
// line means one moment in all of them. Hovering shows a moment everywhere on the page; leaving
// goes back; a click or a tap keeps it.

const chartLeft = (width) => width < 560 ? 40 : 74;
const chartRight = (width) => width < 560 ? 8 : 56;

// x in pixels from t, and back.
function timeScale(width, duration) {
  const left = chartLeft(width);
  const right = chartRight(width);
  const length = width - left - right;
  return {
    left,
    right: width - right,
    x: (t) => left + t / duration * length,
    t: (x) => clamp((x - left) / length * duration, 0, duration - 1),
  };
}

// The ticks of the time axis: [[ns, label]].
function timeTicks(duration, width) {
  const found = ticks(duration / 1e6, width < 560 ? 4 : 8);
  return found.map((ms) => [ms * 1e6, Number(ms.toPrecision(6)) + (ms === 0 ? ' ms' : '')]);
}

// Where the names of the phases stand: [{words, x, align}]. A narrow phase has a short name, or its
// name reaches back from its end.
const SHORT_PHASES = {
  forward: 'fwd',
  backward: 'bwd',
  step: 'step'
};
function phaseNames(step, scale, width) {
  const found = [];
  let free = 0;  // where the last name ends
  const put = (words, x, align) => {
    const from = align === 'left' ? x : x - words.length * 6.2;
    if (from < free) return false;
    free = from + words.length * 6.2 + 2;
    found.push({words, x, align});
    return true;
  };
  step.phases.forEach(({name, begin, end}, i) => {
    const x = scale.x(begin) + 4;
    const room = scale.x(end) - x;
    const short = SHORT_PHASES[name] ?? name;
    if (room > 6.2 * name.length) return put(name, x, 'left');
    if (room > 6 * short.length) return put(short, x, 'left');
    if (i < step.phases.length - 1) return false;
    return x + 6.2 * name.length < width ? put(name, x, 'left') : put(name, width, 'right');
  });
  return found;
}

// `scale` returns the chart's timeScale, or null while there is none.
function linkTime(node, scale) {
  let before = null;  // where to go back to
  const seek = (event) => {
    const at = scale().t(event.clientX - node.getBoundingClientRect().left);
    store.seek(store.positionOf(at));
  };
  node.addEventListener('pointerenter', (event) => {
    if (event.pointerType === 'mouse' && !store.playing && store.step)
      before = [store.s, store.focus];
  });
  node.addEventListener('pointermove', (event) => {
    if (scale() && !store.playing && (before || event.buttons)) seek(event);
  });
  node.addEventListener('pointerdown', (event) => {
    if (!scale()) return;
    store.play(false);
    seek(event);
    before = null;
    store.remember();
  });
  node.addEventListener('pointerleave', () => {
    if (before && !store.playing) store.seek(...before);
    before = null;
  });
}

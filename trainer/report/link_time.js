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

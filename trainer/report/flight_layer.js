// SPDX-License-Identifier: Apache-2.0
//
// FlightLayer: a canvas above the cards, on which slices travel from card to card and copies
// between a card and its host side.

class FlightLayer {
  constructor() {
    this.canvas = el('canvas', {class: 'flights', 'aria-hidden': 'true'});
  }

  resize(area) {
    this.width = area.clientWidth;
    this.height = area.clientHeight;
  }

  draw(cards, geometry, painter) {
    const context = this.context = prepareCanvas(this.canvas, this.width, this.height);
    this.words = wordsOf(cards, geometry);
    this.besidesWords = new Path2D(this.words);
    this.besidesWords.rect(0, 0, this.width, this.height);
    this.geometry = geometry;
    this.painter = painter;
    for (const {flight, from, to} of this.journeys(cards))
      this.drawFlight(context, flight, from, to);
    for (const card of cards) {
      if (!card.hostPlace) continue;
      const t = samePoint(store.step, store.t, card.step);
      for (const copy of copiesAt(card.step, t)) {
        if (copy.rank === card.rank) this.drawCopy(context, copy, card);
      }
    }
  }

  // Flights with the cards they go between. Among the devices of one run both are on the page;
  // where one device of each run is shown, a slice leaves or enters at the edge of its card.
  journeys(cards) {
    if (!store.acrossRuns) {
      return flightsAt(store.step, store.t)
          .map((flight) => ({flight, from: cards[flight.from], to: cards[flight.to]}));
    }
    return cards.flatMap((card) => {
      const flights = flightsAt(card.step, samePoint(store.step, store.t, card.step));
      return flights.flatMap(
          (flight) => [flight.from === card.rank ? {flight, from: card, to: null} : null,
                       flight.to === card.rank ? {flight, from: null, to: card} : null,
      ].filter(Boolean));
    });
  }

  drawFlight(context, flight, from, to) {
    const card = from ?? to;
    const scalar = flight.kind === 'scalars';
    const group = flight.kind === 'gradients' ? 1 : 0;
    const above = card.gaugePlace.top - card.canvasPlace.top;
    const [x, y, width, height] = scalar ?
        [0, above, 8, 8] :
        sliceBox(this.geometry, group, flight.unit, flight.slice, card.step.world);
    const start = {
      x: from ? from.canvasPlace.left + x : to.place.left - width / 2,
      y: card.canvasPlace.top + y
    };
    const end = {
      x: to ? to.canvasPlace.left + x : from.place.right - width / 2,
      y: (to ?? card).canvasPlace.top + y
    };
    const ink = scalar ? this.painter.colors.ink : this.painter.colors[flight.kind];
    const at = this.drawPath(
        context, start, end, [width, height], flight.share, ink,
        scalar ? 0 : card.canvasPlace.top + this.geometry.head);
    if (scalar) {
      context.fillStyle = ink;
      context.beginPath();
      context.arc(at.x + 4, at.y + 4, 4, 0, 7);
      context.fill();
      return;
    }
    this.drawSlice(
        context, [at.x, at.y, width, height], flight.kind,
        flight.summed === null ? 'whole' : 'local');
    if (flight.summed !== null && to) this.drawLevel(context, end, width, height, flight);
  }

  // The owner's slice fills from below: how many devices are in the sum.
  drawLevel(context, at, width, height, flight) {
    const level = height * flight.summed;
    context.fillStyle = this.painter.colors[flight.kind];
    context.fillRect(at.x, at.y + height - level, width, level);
  }

  drawCopy(context, copy, card) {
    const group = {parameters: 0, gradients: 1}[copy.purpose];
    const {world} = card.step;
    const [x, y, width, height] = group === undefined ?
        [this.geometry.inner / 2, card.gaugePlace.top - card.canvasPlace.top, 12, 8] :
        sliceBox(this.geometry, group, copy.unit, card.rank, world);
    const device = {x: card.canvasPlace.left + x, y: card.canvasPlace.top + y};
    const host = {x: device.x, y: card.hostPlace.top};
    const [start, end] = copy.down ? [device, host] : [host, device];
    const name = group === undefined ? 'activation_checkpoints' : copy.purpose;
    const at =
        this.drawPath(context, start, end, [width, height], copy.share, this.painter.colors[name]);
    this.drawSlice(context, [at.x, at.y, width, height], name, 'whole');
  }

  // Solid behind the slice, dotted ahead, on an arc. Returns where the slice is.
  drawPath(context, start, end, [width, height], share, ink, ceiling = 0) {
    const upright = Math.abs(end.x - start.x) < 4;
    let lift = clamp(Math.hypot(end.x - start.x, end.y - start.y) * 0.09, 16, 46);
    // Between neighbours on the page: below, where an arc would rise into the names of the cards.
    if (Math.abs(end.y - start.y) < 4 && start.y - lift / 2 < ceiling) lift = -lift;
    const bend = {
      x: (start.x + end.x) / 2 + (upright ? lift : 0),
      y: (start.y + end.y) / 2 - (upright ? 0 : lift)
    };
    const at = (p) => {
      const q = 1 - p;
      const mix = (axis) => q * q * start[axis] + 2 * q * p * bend[axis] + p * p * end[axis];
      return {x: mix('x'), y: mix('y')};
    };
    const trace = (from, to) => {
      context.beginPath();
      for (let i = 0; i <= 20; ++i) {
        const point = at(from + (to - from) * i / 20);
        context[i ? 'lineTo' : 'moveTo'](point.x + width / 2, point.y + height / 2);
      }
      context.stroke();
    };
    const p = reducedMotion.matches ? 0.5 : share * share * (3 - 2 * share);
    context.save();
    context.clip(this.besidesWords, 'evenodd');
    context.strokeStyle = ink;
    context.globalAlpha = 0.55;
    context.lineWidth = 2;
    trace(0, p);
    context.lineWidth = 1.25;
    context.setLineDash([2, 4]);
    trace(p, 1);
    context.setLineDash([]);
    context.restore();
    if (p < 0.9) this.drawHead(context, at(0.9), at(1), [width, height], ink);
    return at(p);
  }

  // The arrowhead at the end of a path.
  drawHead(context, from, to, [width, height], ink) {
    const angle = Math.atan2(to.y - from.y, to.x - from.x);
    context.save();
    context.translate(to.x + width / 2, to.y + height / 2);
    context.rotate(angle);
    context.fillStyle = ink;
    context.beginPath();
    context.moveTo(3, 0);
    context.lineTo(-5, 4);
    context.lineTo(-5, -4);
    context.fill();
    context.restore();
  }

  // Faint where it crosses words.
  drawSlice(context, box, kind, state) {
    const draw = (alpha, region) => {
      context.save();
      context.clip(region, 'evenodd');
      context.globalAlpha = alpha;
      this.drawBox(context, box, kind, state);
      context.restore();
    };
    draw(1, this.besidesWords);
    draw(0.25, this.words);
  }

  drawBox(context, [x, y, width, height], kind, state) {
    const {colors} = this.painter;
    context.fillStyle = colors.surface;
    context.fillRect(x - 3, y - 3, width + 6, height + 6);
    context.strokeStyle = colors.ink;
    context.lineWidth = 1;
    context.strokeRect(x - 2.5, y - 2.5, width + 5, height + 5);
    this.painter.paint(context, [x, y, width, height], kind, state);
  }
}

// Where the words of the cards are, which paths pass below.
function wordsOf(cards, geometry) {
  const path = new Path2D();
  for (const {place, canvasPlace} of cards) {
    const width = place.right - place.left;
    path.rect(place.left, place.top, width, canvasPlace.top - place.top + geometry.head - 8);
    path.rect(
        canvasPlace.left, canvasPlace.top + geometry.head, geometry.groups[0].x - 3,
        geometry.height - geometry.head);
  }
  return path;
}

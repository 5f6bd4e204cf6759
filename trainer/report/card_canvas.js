// SPDX-License-Identifier: Apache-2.0
//
// The canvas of a card: a row for each unit, three groups (parameters, gradients, optimizer states)
// of N columns. Column k is slice k, which device k owns; a band and a triangle mark the card's
// own.

// Sizes in CSS pixels for a canvas of width `inner`. Many units make thin rows.
function cardGeometry(inner) {
  const narrow = inner < 200;
  const n = units.length;
  const [rowHeight, gap] = n <= 8 ? [narrow ? 13 : 19, 5] :
      n <= 16                     ? [narrow ? 8 : 12, 3] :
      n <= 32                     ? [narrow ? 5 : 8, 2] :
                                    [narrow ? 4 : 6, 1];
  const head = narrow ? 21 : 25;
  const label = narrow ? 31 : 38;
  const between = narrow ? 5 : 12;
  const width = (inner - label - 2 * between - 3) / 3.3;  // 3 for the frame on the right
  let x = label;
  const groups = [width, width, width * 1.3].map((groupWidth) => {
    const group = {x, width: groupWidth};
    x += groupWidth + between;
    return group;
  });
  return {
    inner,
    narrow,
    rowHeight,
    gap,
    head,
    groups,
    height: head + n * (rowHeight + gap),
    labelEvery: rowHeight >= 11 ? 1 :
        rowHeight + gap >= 10   ? 4 :
        rowHeight + gap >= 7    ? 6 :
                                  8,
  };
}

// [x, y, width, height] of a slice.
function sliceBox(geometry, kind, unit, slice, world) {
  const group = geometry.groups[kind];
  const width = group.width / world;
  const y = geometry.head + unit * (geometry.rowHeight + geometry.gap);
  return [group.x + slice * width, y, width - (width > 5 ? 1 : 0.5), geometry.rowHeight];
}

class CardPainter {
  constructor() {
    this.readColors();
  }

  readColors() {
    const names = ['ink', 'muted', 'line', 'faint', 'surface', 'sans', ...report.categories];
    this.colors = Object.fromEntries(names.map((name) => [name, colorValue(name)]));
    this.stale = Number(colorValue('stale'));
    this.patterns = {};
  }

  // `op` is what the device computes now, if anything.
  draw(card, geometry, t, op) {
    const context = prepareCanvas(card.canvas, geometry.inner, geometry.height);
    const {step, rank} = card;
    const state = (kind, unit, slice) => {
      const held = step.slice(kind, rank, unit, slice, t);
      const away = held === 'absent' && onHost(step.run, kind) &&
          (slice === rank || !sharded(step.run, kind));
      return away ? 'host' : held;
    };
    this.drawHead(context, geometry, rank, step.world);
    units.forEach((unit, u) => {
      this.drawLabel(context, geometry, u, op);
      KINDS.forEach((kind, group) => {
        const layers = group === 2 ? step.run.bytes_per_parameter.optimizer / 4 : 1;
        for (let slice = 0; slice < step.world; ++slice) {
          this.paint(
              context, sliceBox(geometry, group, u, slice, step.world), kind, state(kind, u, slice),
              layers);
        }
      });
    });
    if (op?.unit >= 0) this.frame(context, geometry, card, op);
  }

  drawHead(context, geometry, rank, world) {
    const names = geometry.narrow ? ['par', 'grad', 'opt'] : ['params', 'grads', 'optimizer'];
    context.textBaseline = 'alphabetic';
    context.font = this.font(geometry, 400);
    geometry.groups.forEach((group, i) => {
      const width = group.width / world - 1;
      const x = group.x + rank * group.width / world;
      const middle = x + width / 2;
      context.fillStyle = this.colors.muted;
      context.fillText(names[i], group.x, 10);
      context.fillStyle = this.colors.ink;
      context.globalAlpha = 0.09;
      context.fillRect(
          x - 1.5, geometry.head - 3, width + 3,
          geometry.height - geometry.head + 6 - geometry.gap);
      context.globalAlpha = 1;
      context.beginPath();
      context.moveTo(middle - 3.5, geometry.head - 7);
      context.lineTo(middle + 3.5, geometry.head - 7);
      context.lineTo(middle, geometry.head - 3);
      context.fill();
    });
  }

  // Thin rows have a label now and then, and where the device works.
  drawLabel(context, geometry, unit, op) {
    const every = geometry.labelEvery;
    const busy = op?.unit === unit;
    const regular = every === 1 || unit === 0 || (unit > 1 && (unit - 1) % every === 0);
    const covered = every > 1 && op?.unit >= 0 &&
        Math.abs(unit - op.unit) * (geometry.rowHeight + geometry.gap) < 11;
    if (!busy && (!regular || covered)) return;
    const y = geometry.head + unit * (geometry.rowHeight + geometry.gap);
    context.textBaseline = 'middle';
    context.fillStyle = busy ? this.colors.ink : this.colors.muted;
    context.font = this.font(geometry, busy ? 600 : 400);
    context.fillText(units[unit].short, 0, y + geometry.rowHeight / 2 + 0.5);
  }

  // A frame round what the device works on.
  frame(context, geometry, {step, rank}, op) {
    context.strokeStyle = this.colors.ink;
    context.lineWidth = geometry.rowHeight > 10 ? 1.5 : 1;
    const groups = op.kind === 'update' ? [0, 1, 2] :
        op.kind === 'backward'          ? (op.layer === 'lookup' ? [1] : [0, 1]) :
                                          [0];
    const owned = op.kind === 'update' && sharded(step.run, 'optimizer_states');
    const y = geometry.head + op.unit * (geometry.rowHeight + geometry.gap);
    for (const group of groups) {
      const {x, width} = geometry.groups[group];
      const part = owned ? width / step.world : width;
      context.strokeRect(
          (owned ? x + rank * part : x) - 1.5, y - 1.5, part + 2, geometry.rowHeight + 3);
    }
  }

  paint(context, [x, y, width, height], name, state, layers = 1) {
    const fill = this.colors[name];
    context.fillStyle = fill;
    switch (state) {
      case 'absent':
        context.fillStyle = this.colors.faint;
        context.fillRect(x, y, width, height);
        return;
      case 'whole':
        if (layers > 1 && height >= 11) {  // master weights, m, v
          const each = (height - (layers - 1)) / layers;
          for (let i = 0; i < layers; ++i) context.fillRect(x, y + i * (each + 1), width, each);
        } else {
          context.fillRect(x, y, width, height);
        }
        return;
      case 'stale':
        context.globalAlpha = this.stale;
        context.fillRect(x, y, width, height);
        context.globalAlpha = 1;
        context.strokeStyle = fill;
        context.lineWidth = 1;
        context.beginPath();
        context.moveTo(x + 0.5, y + height - 0.5);
        context.lineTo(x + width - 0.5, y + 0.5);
        context.stroke();
        return;
      case 'host': {
        const thickness = Math.max(1.5, height * 0.22);
        context.fillStyle = this.colors.faint;
        context.fillRect(x, y, width, height);
        context.fillStyle = fill;
        context.fillRect(x, y + height - thickness, width, thickness);
        return;
      }
      case 'borrowed':
        context.globalAlpha = 0.5;
        context.fillRect(x, y, width, height);
        context.globalAlpha = 1;
        break;
      case 'local':
        this.patterns[name] ??= hatchPattern(context, fill, 5, 1.7);
        context.fillStyle = this.patterns[name];
        context.fillRect(x, y, width, height);
        break;
    }
    context.strokeStyle = fill;
    context.lineWidth = 1;
    context.strokeRect(x + 0.5, y + 0.5, Math.max(0.5, width - 1), height - 1);
  }

  font(geometry, weight) {
    return `${weight} ${geometry.narrow ? 9.5 : 11}px ${this.colors.sans}`;
  }
}
